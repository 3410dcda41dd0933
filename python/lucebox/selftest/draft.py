"""Cases of drafting ops: row copies, the predecessor of each row, top tokens, DFlash 2's ops, trees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from lucebox.selftest import ops, shapes
from lucebox.selftest.case import Array, Case, Parts, same
from lucebox.selftest.inputs import normal, path, weights_of

__all__ = ["rows", "selections", "top_tokens", "trees"]


def rows(rng: np.random.Generator) -> Iterator[Case]:
    """Copies into a wider matrix, predecessor rows in linear appends and trees, convolutions."""
    for count, dim, column, width in shapes.COPIES:
        yield same("copy_rows", "exact", normal(rng, count, dim), normal(rng, count, width), column)
    for count, dim, y_rows, first, column, width in shapes.RINGS:
        into_ring = same("copy_rows", "exact", normal(rng, count, dim), normal(rng, y_rows, width), column, first)
        yield into_ring
        yield replace(into_ring, options={"sequences": 3})
    for count, dim in ((1, 31), (22, 100), (130, 64)):
        parent = np.array([rng.integers(-1, i) if i else -1 for i in range(count)], np.int32) if count == 22 else None
        before = (normal(rng, dim), normal(rng, 64, dim), path(rng, 64), parent)
        arguments = (normal(rng, count, dim), *before)
        n = min(count, (count - 1) % 64 + 1)
        expected, kept = partial(ops.previous_row, *arguments), partial(_kept, n)
        yield Case("previous_row", "exact", partial(_applied, kept, expected), arguments, {}, kept)
    for count, taps, dim, group in shapes.BLOCK_CONVS:
        x, base, add = normal(rng, count, dim), normal(rng, taps, dim), normal(rng, count, dim)
        yield same("block_conv", "row", x, base, normal(rng, count, taps, dim // group), group, add)


def top_tokens(rng: np.random.Generator) -> Iterator[Case]:
    for i, (count, vocab) in enumerate(shapes.TOP_TOKENS):
        k = (8, 1, 5)[i % 3]
        ties = rng.integers(-9, 9, (count, vocab)).astype(np.float32)
        for logits, softcap in ((9 * normal(rng, count, vocab), 0.0), (ties, 30.0)):
            arguments = (logits, k, 0.7, softcap)
            expected = partial(ops.top_tokens, *arguments)
            yield Case("top_tokens", "exact", partial(_applied, _first, expected), arguments, {}, _first)
            yield Case("top_tokens", "row", partial(_applied, _second, expected), arguments, {}, _second, _logits)


def selections(rng: np.random.Generator) -> Iterator[Case]:
    """Scores are far apart, so the order is the same on every device."""
    for (dtype, values), (count, k, blocks) in product((("F32", 37), ("Q8_0", 32)), shapes.SELECTIONS):
        rank = blocks * values
        before, after = weights_of(rng, dtype, 41 * rank), weights_of(rng, dtype, 41 * rank)
        ids = np.array([rng.permutation(41)[:k] for _ in range(count)], np.int32)
        logprobs = np.array([-1000 * rng.permutation(k) for _ in range(count)], np.float32)
        arguments = (normal(rng, count, rank), before, after, dtype, 5, ids, logprobs)
        expected = partial(ops.select_candidates, *arguments)
        yield Case("select_candidates", "exact", partial(_applied, _first, expected), arguments, {}, _first)


def trees(rng: np.random.Generator) -> Iterator[Case]:
    """Trees from drafts with many equal scores, for three sequences."""
    for depth, k, max_rows, count in ((15, 8, 64, 24), (3, 2, 15, 15)):
        ids = rng.integers(0, 99, (3, depth, k)).astype(np.int32)
        logprobs = -np.sort(rng.integers(0, 4, ids.shape) / 2, axis=-1).astype(np.float32)
        arguments = (ids, logprobs, ids[:, 0, 0].copy(), np.array([0, 1, 70], np.int32), max_rows, count)
        expected = partial(ops.grow_tree, *arguments)
        yield Case("grow_tree", "exact", partial(_applied, _fields, expected), arguments, {}, _fields)


def _applied(part: Callable[[Any], Array], expected: Callable[[], Any]) -> Array:
    return part(expected())


def _kept(n: int, parts: Parts) -> Array:
    """y, history, and the pending rows that were written."""
    y, history, pending = parts
    return np.concatenate([np.ravel(part) for part in (y, history, pending[:n])])


def _fields(result: Any) -> Array:
    """Splits each ancestor mask into two numbers that fp64 represents exactly."""
    low, high = result["ancestors"] & np.uint64(0xFFFFFFFF), result["ancestors"] >> np.uint64(32)
    names = ("n_rows", "tokens", "parents", "depths", "scores", "positions")
    return np.concatenate([np.ravel(part) for part in (*(result[name] for name in names), low, high)])


def _first(result: Parts) -> Array:
    return result[0]


def _second(result: Parts) -> Array:
    return result[1]


def _logits() -> Array:
    """Log probabilities are differences between logits, up to about 30."""
    return np.full((), 30.0)
