"""Ops of a tree row by row: each row has the bits of a step after its parent, and so has the state after a path."""

from __future__ import annotations

import numpy as np
import pytest
from delta_cases import CAP, Inputs, Shape
from kv_cache import filled
from lucebox import _engine
from lucebox.selftest import ops
from numpy.typing import NDArray
from tree_data import path_to, random_tree

Pack = _engine.gpu.Pack
F32 = NDArray[np.float32]


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.normal(size=shape).astype(np.float32)


def wide_tree(rows: int, rng: np.random.Generator) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    """One root; about half of the rows follow the row before them."""
    parent, _ = random_tree(rows, rng)
    follows = rng.random(rows) < 0.5
    parent[1:] = np.where(follows[1:], np.arange(rows - 1), np.maximum(parent[1:], 0))
    return parent, np.array([sum(1 << int(i) for i in path_to(parent, row)) for row in range(rows)], np.uint64)


HEADS = [(6, 2, 64), (16, 2, 128), (12, 1, 256), (18, 2, 64)]  # queries per KV head: 3 and 8, 12, 9
TYPES = [("f16", "f16"), ("q8_0", "wht4"), ("wht3", "q5_1"), ("f32", "f32")]


@pytest.mark.parametrize(("types", "heads"), [(TYPES[0], HEADS[0]), (TYPES[1], HEADS[1]), (TYPES[2], HEADS[3]),
                                              (TYPES[3], (6, 2, 40)),
                                              *(pytest.param(types, heads, marks=pytest.mark.slow)
                                                for types in (*TYPES, ("bf16", "bf16"), ("q4_0", "tq3_0"))
                                                for heads in HEADS)])  # fmt: skip
@pytest.mark.parametrize("window", [0, 50])
def test_attention(pack: Pack, types: tuple[str, str], heads: tuple[int, int, int], window: int, seed: int) -> None:
    """Over several splits, with the tree across the end of a page; kv_move makes the cache of a step."""
    check_attention(pack, types, heads, 0, window, seed)


@pytest.mark.parametrize(("dtype", "heads", "key_tail"), [("f16", (3, 1, 512), 128), ("q8_0", (3, 1, 512), 128),
                                                          ("q4_0", (6, 2, 32), 64)])  # fmt: skip
def test_attention_to_values_in_keys(
    pack: Pack, dtype: str, heads: tuple[int, int, int], key_tail: int, seed: int
) -> None:
    check_attention(pack, (dtype, dtype), heads, key_tail, 0, seed)


def check_attention(
    pack: Pack, types: tuple[str, str], heads: tuple[int, int, int], key_tail: int, window: int, seed: int
) -> None:
    n_heads, n_kv, dim = heads
    rng = np.random.default_rng(seed)
    rows, n_past = int(rng.integers(2, 33)), int(rng.integers(0, 3)) * 64 + int(rng.integers(32, 64))
    cache = filled(n_past + rows, n_kv, dim, *types, rng, 320, key_tail=key_tail)
    parent, masks = wide_tree(rows, rng)
    q, gate = normal(rng, rows, n_heads, dim + key_tail) * np.float32(3), normal(rng, rows, n_heads, dim)
    sinks = normal(rng, n_heads)
    last = {"window": window, "sinks": sinks, "pack": pack, **cache.sizes}
    got = ops.attention(q, *cache.pages, n_past, dim**-0.5, gate, masks, parent, by_row=True, **last)
    assert any("_rows" in kernel for kernel in ops.take_started(pack))
    for row in range(rows):
        path = path_to(parent, row)
        pages = ops.kv_move(*cache.pages, path, n_past, dim, key_tail, pack=pack)
        step = (q[row : row + 1], *pages, *cache.pages[2:], n_past + len(path) - 1, dim**-0.5, gate[row : row + 1])
        assert np.array_equal(ops.attention(*step, None, None, **last)[0], got[row]), (rows, n_past, row)


@pytest.mark.parametrize("shape", [(1, 2, 128, 128), (2, 4, 64, 40), (1, 3, 8, 16), (2, 2, 256, 24)])
def test_delta_rule(pack: Pack, shape: Shape, seed: int) -> None:
    """Trees, and the paths that following appends fold: other trees, single rows, and nothing."""
    kh, vh, dk, dv = shape
    rng = np.random.default_rng(seed)
    S, buffer = normal(rng, vh, dk, dv), int(rng.integers(2))
    unused = [np.full((2, CAP, kh, dk), np.nan, np.float32), np.full((2, CAP, vh), np.nan, np.float32),
              np.full((CAP, vh, dv), np.nan, np.float32)]  # fmt: skip
    trees, steps = (S, *unused), (S, *unused)  # the same sequence in trees and in steps
    tree_buffer = step_buffer = buffer
    accepted, stepped = np.zeros(0, np.int32), np.zeros(0, np.int32)
    for rows in (int(rng.integers(2, 33)), 32, 1, int(rng.integers(2, 9)), 0):
        inputs = Inputs.random(shape, rows, rng, 0.3)
        parent, masks = wide_tree(rows, rng) if rows > 1 else (None, None)
        given = (inputs.qkv, inputs.g, inputs.beta)
        o, *trees = ops.gated_delta(*given, *trees, tree_buffer, accepted, parent, masks, by_row=True, pack=pack)
        tree_buffer = 1 - tree_buffer if rows else tree_buffer
        kept = path_to(parent, int(rng.integers(rows))) if parent is not None else np.arange(rows, dtype=np.int32)
        for row in kept:
            one = (inputs.qkv[row : row + 1], inputs.g[row : row + 1], inputs.beta[row : row + 1])
            step, *steps = ops.gated_delta(*one, *steps, step_buffer, stepped, by_row=True, pack=pack)
            step_buffer, stepped = 1 - step_buffer, np.zeros(1, np.int32)
            assert np.array_equal(step[0], o[row]), (rows, row)
        accepted = kept
    nothing = Inputs.random(shape, 0, rng, 0.3)
    _, *steps = ops.gated_delta(nothing.qkv, nothing.g, nothing.beta, *steps, step_buffer, stepped, by_row=True,
                                pack=pack)  # fmt: skip
    assert np.array_equal(trees[0], steps[0])


@pytest.mark.parametrize(("kh", "vh", "dk", "dv", "taps"), [(1, 3, 128, 128, 4)])
def test_inputs_of_the_delta_rule(pack: Pack, kh: int, vh: int, dk: int, dv: int, taps: int, seed: int) -> None:
    """A row after its path of accepted rows has the bits of the row in a tree."""
    rng = np.random.default_rng(seed)
    rows, channels = int(rng.integers(2, 33)), 2 * kh * dk + vh * dv
    parent, _ = wide_tree(rows, rng)
    x, w, history = normal(rng, rows, channels), normal(rng, channels, taps), normal(rng, taps - 1, channels)
    gates = (normal(rng, rows, vh), normal(rng, rows, vh))
    weights = (-np.abs(normal(rng, vh)), normal(rng, vh), kh, dk, 1e-6)
    unused = np.zeros((CAP, channels), np.float32)
    y, _, _, g, beta = ops.delta_inputs(x, w, history, unused, *gates, *weights, None, parent, by_row=True, pack=pack)
    for row in range(rows):
        path = path_to(parent, row)[:-1]
        pending = np.concatenate([x, unused[rows:]])
        one = (x[row : row + 1], w, history, pending, gates[0][row : row + 1], gates[1][row : row + 1])
        got = ops.delta_inputs(*one, *weights, path, None, by_row=True, pack=pack)
        assert all(np.array_equal(a[0], b[row]) for a, b in zip((got[0], *got[3:]), (y, g, beta), strict=True)), row
