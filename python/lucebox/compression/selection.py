"""Selection: the pieces of a scored text that fit in a budget of tokens, and the text that they make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lucebox.compression.pieces import Span, TokenCounts, pieces
from lucebox.compression.scores import ChunkScore

__all__ = ["joined", "merged", "select"]


def select(
    text: str, cuttable: Sequence[Span], chunks: Sequence[ChunkScore], count: TokenCounts, budget: int
) -> list[Span]:
    """The spans to keep of the cuttable ones: at most `budget` tokens, by `count`, in order.

    Chunks are visited by descending score, the earlier one first among equals. Each gives its pieces, the one with the
    largest share in it first, until the budget is used.
    """
    units = [piece for span in cuttable for piece in pieces(text, span, count)]
    ranked = sorted(range(len(chunks)), key=lambda i: (-chunks[i].score, i))
    inside = _pieces_of(units, chunks)
    kept: set[int] = set()
    for i in ranked:
        chunk = chunks[i]
        for unit in sorted(inside[i], key=lambda u: (-_overlap(units[u], chunk), u)):
            n_tokens = count(units[unit])
            if unit not in kept and n_tokens <= budget:
                kept.add(unit)
                budget -= n_tokens
    return merged(units[unit] for unit in sorted(kept))


def merged(spans: Iterable[Span]) -> list[Span]:
    """Spans in ascending order, with touching and overlapping ones as one."""
    result: list[Span] = []
    for start, stop in spans:
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(stop, result[-1][1]))
        elif stop > start:
            result.append((start, stop))
    return result


def joined(text: str, spans: Sequence[Span]) -> str:
    """The text of the spans. Where a cut has no white space on either side, a space keeps words apart."""
    parts: list[str] = []
    for start, stop in spans:
        if parts and not parts[-1][-1].isspace() and not text[start].isspace():
            parts.append(" ")
        parts.append(text[start:stop])
    return "".join(parts)


def _pieces_of(units: Sequence[Span], chunks: Sequence[ChunkScore]) -> list[list[int]]:
    """For each chunk, the indices of the pieces that overlap it. Both are in ascending order."""
    inside: list[list[int]] = [[] for _ in chunks]
    first = 0
    for unit, (start, stop) in enumerate(units):
        while first < len(chunks) and chunks[first].stop <= start:
            first += 1
        for i in range(first, len(chunks)):
            if chunks[i].start >= stop:
                break
            inside[i].append(unit)
    return inside


def _overlap(unit: Span, chunk: ChunkScore) -> int:
    return min(unit[1], chunk.stop) - max(unit[0], chunk.start)
