"""Selection: the pieces of a scored text that fit in a budget of tokens, and the text that they make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from lucebox.compression.pieces import Span, TokenCounts, pieces
from lucebox.compression.scores import ScoredText

__all__ = ["joined", "merged", "select"]


def select(scored: ScoredText, cuttable: Sequence[Span], count: TokenCounts, budget: int) -> list[Span]:
    """The spans to keep of the cuttable ones, in order: pieces of at most `budget` tokens, by `count`, together.

    Pieces come by the mean score of their tokens, the earlier one first among equals; one that no longer fits is passed
    over. Means of pieces find facts that means of chunks of 32 tokens miss: see docs/compression.md.
    """
    units = [piece for span in cuttable for piece in pieces(scored.text, span, count)]
    scores = [_mean_score(scored, unit) for unit in units]
    kept = []
    for i in sorted(range(len(units)), key=lambda i: (-scores[i], i)):
        n_tokens = count(units[i])
        if n_tokens <= budget:
            kept.append(units[i])
            budget -= n_tokens
    return merged(sorted(kept))


def merged(spans: Iterable[Span]) -> list[Span]:
    """Spans in ascending order, with touching and overlapping ones as one and without empty ones."""
    result: list[Span] = []
    for start, stop in spans:
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(stop, result[-1][1]))
        elif stop > start:
            result.append((start, stop))
    return result


def joined(text: str, spans: Sequence[Span]) -> str:
    """The text of the spans. Where a cut has no white space on either side, a space keeps words apart. Where the end of
    the text was cut, so is the white space before it."""
    parts: list[str] = []
    for start, stop in spans:
        if parts and not parts[-1][-1].isspace() and not text[start].isspace():
            parts.append(" ")
        parts.append(text[start:stop])
    is_cut = not spans or spans[-1][1] < len(text)
    return "".join(parts).rstrip() if is_cut else "".join(parts)


def _mean_score(scored: ScoredText, unit: Span) -> float:
    """The mean score of the tokens that begin in a piece; that of the token before where none does."""
    first, last = scored.starts.searchsorted(unit)
    if last <= first:
        return float(scored.scores[max(0, first - 1)])
    return float(np.add.reduce(scored.scores[first:last]) / (last - first))
