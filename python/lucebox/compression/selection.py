"""Selection: picks the best-scored pieces of a text within a token budget, and joins them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from lucebox.compression.pieces import Span, TokenCounts, pieces
from lucebox.compression.scores import ScoredText

__all__ = ["joined", "merged", "select"]


def select(scored: ScoredText, cuttable: Sequence[Span], count: TokenCounts, budget: int) -> list[Span]:
    """Selects pieces of the cuttable spans, at most `budget` tokens in total by `count`; returns their spans in order.

    Greedy: takes pieces by descending mean score of their tokens, the earlier one first on ties, and skips pieces that
    no longer fit. Means over pieces find facts that means over chunks of 32 tokens miss: see docs/compression.md.
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
    """Spans in ascending order; touching and overlapping spans are merged, empty ones dropped."""
    result: list[Span] = []
    for start, stop in spans:
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(stop, result[-1][1]))
        elif stop > start:
            result.append((start, stop))
    return result


def joined(text: str, spans: Sequence[Span]) -> str:
    """The text of the spans. A cut without white space on either side becomes a space, to keep words apart. If the end
    of the text was cut, trailing white space is stripped."""
    parts: list[str] = []
    for start, stop in spans:
        if parts and not parts[-1][-1].isspace() and not text[start].isspace():
            parts.append(" ")
        parts.append(text[start:stop])
    is_cut = not spans or spans[-1][1] < len(text)
    return "".join(parts).rstrip() if is_cut else "".join(parts)


def _mean_score(scored: ScoredText, unit: Span) -> float:
    """The mean score of the tokens that begin in a piece; if none does, the score of the preceding token."""
    first, last = scored.starts.searchsorted(unit)
    if last <= first:
        return float(scored.scores[max(0, first - 1)])
    return float(np.add.reduce(scored.scores[first:last]) / (last - first))
