"""Candidates of drafts for GrowTree, and the comparison of its result with the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
from lucebox.selftest import ops
from numpy.typing import NDArray
from reference import grow_tree as reference

# sequences, depth, k, max_rows, rows: one of each, blocks of 16 rows, fewer candidates than rows, chains.
SHAPES = (
    (1, 1, 1, 1, 1),
    (1, 15, 8, 64, 24),
    (3, 7, 8, 23, 23),
    (2, 1, 8, 64, 9),
    (1, 3, 2, 64, 15),
    (2, 63, 1, 64, 33),
    (1, 63, 8, 64, 1),
    (5, 4, 3, 2, 2),
)
SCORES = ("spread", "ties", "zeros", "infinite", "unknown")


def candidates(rng: np.random.Generator, scores: str, *shape: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Ids and log probabilities [sequences, depth, k], the likeliest first."""
    ids = rng.integers(0, 250_000, shape).astype(np.int32)
    if scores == "ties":  # sums of halves are exact, so paths of equal length often tie
        return ids, -np.sort(rng.integers(0, 4, shape) / 2, axis=-1).astype(np.float32)
    if scores == "zeros":
        return ids, np.where(rng.random(shape) < 0.5, np.float32(0), np.float32(-0.0))
    logprobs = -np.sort(rng.exponential(1.5, shape), axis=-1).astype(np.float32)
    if scores == "infinite":
        logprobs[rng.random(shape) < 0.3] = -np.inf
    if scores == "unknown":
        logprobs[rng.random(shape) < 0.2] = np.nan
    return ids, logprobs


def check_tree(rng: np.random.Generator, scores: str, shape: tuple[int, ...], on: dict[str, Any]) -> None:
    """Checks that every field equals the reference's, bit for bit, and that nothing is written after a tree's rows."""
    sequences, depth, k, max_rows, rows = shape
    ids, logprobs = candidates(rng, scores, sequences, depth, k)
    root = rng.integers(0, 250_000, sequences).astype(np.int32)
    n_past = rng.integers(0, 100_000, sequences).astype(np.int32)
    got = ops.grow_tree(ids, logprobs, root, n_past, max_rows, rows, **on)
    for s in range(sequences):
        want = reference.grow_tree(ids[s], logprobs[s], int(root[s]), max_rows)
        n = len(want["tokens"])
        assert got["n_rows"][s] == n
        for name in reference.FIELDS:
            assert np.array_equal(got[name][s, :n], want[name], equal_nan=name == "scores"), name
            assert (got[name][s, n:].view(np.uint8) == 0xFF).all(), name
        n = min(n, rows)
        assert np.array_equal(got["positions"][s, :, :n], np.tile(n_past[s] + want["depths"][:n], (3, 1)))
        assert (got["positions"][s, :, n:] == -1).all()
