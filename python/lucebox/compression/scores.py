"""Scores of a text's tokens: smoothing, and means over chunks. The scorer's attention weights are the raw scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["CHUNK", "ChunkScore", "Floats", "ScoredText", "Starts", "smoothed"]

Floats = NDArray[np.float64]
Starts = NDArray[np.int64]

POOL = 13  # tokens of the centred average
CHUNK = 32  # tokens


def smoothed(raw: NDArray[np.floating]) -> Floats:
    """[n_tokens] centred averages of the raw scores [n_tokens] over POOL tokens; over fewer at the ends."""
    sums = np.concatenate([[0.0], np.cumsum(raw, dtype=np.float64)])
    at = np.arange(len(raw))
    begin = np.maximum(at - POOL // 2, 0)
    end = np.minimum(at + POOL // 2 + 1, len(raw))
    result: Floats = (sums[end] - sums[begin]) / (end - begin)
    return result


@dataclass(frozen=True, slots=True)
class ChunkScore:
    """A chunk of CHUNK tokens of the scorer; the last one may be shorter."""

    start: int
    """Character at which it begins."""
    stop: int
    score: float
    """Mean smoothed attention weight of its tokens, 0 to 1."""


@dataclass(frozen=True, slots=True)
class ScoredText:
    """A text with the smoothed scores of its tokens, in the scorer's vocabulary."""

    text: str
    ids: NDArray[np.int32]
    """[n_tokens]"""
    starts: Starts
    """[n_tokens] character at which each token begins."""
    scores: Floats
    """[n_tokens]"""

    def chunks(self) -> tuple[ChunkScore, ...]:
        """[ceil(n_tokens / CHUNK)] the chunks in order; together they cover the text."""
        firsts = range(0, len(self.starts), CHUNK)
        begins = [0, *(int(self.starts[first]) for first in firsts[1:])]
        ends = [*begins[1:], len(self.text)]
        return tuple(
            ChunkScore(begin, end, float(self.scores[first : first + CHUNK].mean()))
            for first, begin, end in zip(firsts, begins, ends, strict=True)
        )
