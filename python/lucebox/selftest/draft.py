"""Cases of drafting ops: row copies, the predecessor of each row, top tokens, DFlash 2's ops, trees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from lucebox.selftest import shapes
from lucebox.selftest.case import Case, Parts, case
from lucebox.selftest.inputs import normal, path, weights_of

__all__ = ["rows", "selections", "top_tokens", "trees"]


def rows(rng: np.random.Generator) -> Iterator[Case]:
    """Copies into a wider matrix, predecessor rows in linear appends and trees, convolutions."""
    for count, dim, column, width in shapes.COPIES:
        yield case("copy_rows", "exact", normal(rng, count, dim), normal(rng, count, width), column)
    for count, dim, y_rows, first, column, width in shapes.RINGS:
        into_ring = case("copy_rows", "exact", normal(rng, count, dim), normal(rng, y_rows, width), column, first)
        yield into_ring
        yield replace(into_ring, options={"sequences": 3})
    for count, dim in ((1, 31), (22, 100), (130, 64)):
        parent = np.array([rng.integers(-1, i) if i else -1 for i in range(count)], np.int32) if count == 22 else None
        before = (normal(rng, dim), normal(rng, 64, dim), path(rng, 64), parent)
        arguments = (normal(rng, count, dim), *before)
        yield case("previous_row", "exact", *arguments, kept=partial(_written, min(count, (count - 1) % 64 + 1)))
    for count, taps, dim, group in shapes.BLOCK_CONVS:
        x, base, add = normal(rng, count, dim), normal(rng, taps, dim), normal(rng, count, dim)
        yield case("block_conv", "row", x, base, normal(rng, count, taps, dim // group), group, add)


def top_tokens(rng: np.random.Generator) -> Iterator[Case]:
    for i, (count, vocab) in enumerate(shapes.TOP_TOKENS):
        k = (8, 1, 5)[i % 3]
        ties = rng.integers(-9, 9, (count, vocab)).astype(np.float32)
        for logits, softcap in ((9 * normal(rng, count, vocab), 0.0), (ties, 30.0)):
            arguments = (logits, k, 0.7, softcap)
            yield case("top_tokens", "exact", *arguments, kept=_first)
            # Log probabilities are differences of logits up to about 30.
            yield case("top_tokens", "row", *arguments, kept=_second, unit=30.0)


def selections(rng: np.random.Generator) -> Iterator[Case]:
    """Scores are far apart, so the order is the same on every device."""
    for (dtype, values), (count, k, blocks) in product((("F32", 37), ("Q8_0", 32)), shapes.SELECTIONS):
        rank = blocks * values
        before, after = weights_of(rng, dtype, 41 * rank), weights_of(rng, dtype, 41 * rank)
        ids = np.array([rng.permutation(41)[:k] for _ in range(count)], np.int32)
        logprobs = np.array([-1000 * rng.permutation(k) for _ in range(count)], np.float32)
        arguments = (normal(rng, count, rank), before, after, dtype, 5, ids, logprobs)
        yield case("select_candidates", "exact", *arguments, kept=_first)


def trees(rng: np.random.Generator) -> Iterator[Case]:
    """Trees from drafts with many equal scores, for three sequences."""
    for depth, k, max_rows, count in ((15, 8, 64, 24), (3, 2, 15, 15)):
        ids = rng.integers(0, 99, (3, depth, k)).astype(np.int32)
        logprobs = -np.sort(rng.integers(0, 4, ids.shape) / 2, axis=-1).astype(np.float32)
        n_past = np.array([0, 1, 70], np.int32)
        yield case("grow_tree", "exact", ids, logprobs, ids[:, 0, 0].copy(), n_past, max_rows, count)


def _written(n: int, parts: Parts) -> Parts:
    """y, history, and the pending rows that were written."""
    y, history, pending = parts
    return [y, history, pending[:n]]


def _first(parts: Parts) -> Parts:
    return parts[:1]


def _second(parts: Parts) -> Parts:
    return parts[1:2]
