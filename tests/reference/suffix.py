"""The suffix drafter's definition: what followed the newest occurrences of the longest suffix that occurs before."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

MAX_CONTEXT = 64
OCCURRENCES = 64
MIN_PROBABILITY = 0.02

Tree = tuple[list[int], list[int], list[float]]  # tokens, parents, scores
Match = tuple[int, list[int]]  # length, positions of the last token


def longest_match(text: Sequence[int], end: int, suffix: Sequence[int]) -> Match:
    """Matches of text[:end], newest position first."""
    for length in range(min(MAX_CONTEXT, len(suffix)), 0, -1):
        wanted = list(suffix[-length:])
        found = [p for p in range(end - 1, length - 2, -1) if list(text[p + 1 - length : p + 1]) == wanted]
        if found:
            return length, found
    return 0, []


def grow(root: int, matched: int, follow: list[Callable[[int], int | None]], max_rows: int) -> tuple[Tree, float]:
    """follow: for each occurrence, newest first, the token that stands n tokens behind the match."""
    tokens, parents, depths, chances = [root], [-1], [0], [1.0]
    members = [list(range(len(follow)))]
    candidates: list[tuple[float, int, int, int, list[int]]] = []  # best first when sorted

    def expand(row: int) -> None:
        groups: dict[int | None, list[int]] = {}
        for i in members[row]:
            groups.setdefault(follow[i](depths[row]), []).append(i)
        discount = 2.0 / (2 + matched + depths[row])
        for token, group in groups.items():
            chance = chances[row] / len(members[row]) * (len(group) - discount)
            if token is not None and chance >= MIN_PROBABILITY:
                candidates.append((-chance, row, group[0], token, group))

    expand(0)
    while candidates and len(tokens) < max_rows:
        candidates.sort()
        chance, parent, _, token, group = candidates.pop(0)
        tokens.append(token)
        parents.append(parent)
        depths.append(depths[parent] + 1)
        chances.append(-chance)
        members.append(group)
        expand(len(tokens) - 1)
    if len(tokens) == 1:
        return ([], [], []), 0.0
    return (tokens, parents, [math.log(chance) for chance in chances]), sum(chances[1:])


def propose(
    sequence: Sequence[int], texts: Sequence[tuple[str, list[Sequence[int]]]] = (), max_rows: int = 64
) -> tuple[Tree, float, int, str]:
    """texts: sources besides the sequence, each with its texts, oldest first."""
    none: tuple[Tree, float, int, str] = (([], [], []), 0.0, 0, "none")
    if not sequence:
        return none

    def in_sequence(position: int) -> Callable[[int], int]:
        """An occurrence that runs into the end repeats the tokens since the occurrence."""
        return lambda n: sequence[position + 1 + n % (len(sequence) - 1 - position)]

    length, found = longest_match(sequence, len(sequence) - 1, sequence)
    drafts = [("sequence", length, [in_sequence(p) for p in found])]
    for source, parts in texts:
        matches = [(longest_match(part, len(part), sequence), part) for part in reversed(parts)]
        length = max((match[0] for match, _ in matches), default=0)
        follow = [
            (lambda n, part=part, p=p: part[p + 1 + n] if p + 1 + n < len(part) else None)
            for (found_length, found), part in matches
            for p in found
            if found_length == length
        ]
        drafts.append((source, length, follow))
    best = none
    for source, length, follow in drafts:
        if length > 0:
            tree, accepted = grow(sequence[-1], length, follow[:OCCURRENCES], max_rows)
            if accepted > best[1]:
                best = tree, accepted, length, source
    return best
