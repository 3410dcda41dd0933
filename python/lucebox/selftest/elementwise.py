"""Cases of ops on rows and single values: embeddings, norms, SwiGLU, RoPE, rounded outputs, memory reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from lucebox.selftest import ops, shapes
from lucebox.selftest.case import Array, Case, Parts, same
from lucebox.selftest.inputs import BLOCKS, normal, weights_of


def embeds(rng: np.random.Generator) -> Iterator[Case]:
    for dtype in BLOCKS:
        for rows in (1, 7):
            ids = rng.integers(0, 41, rows, np.int32)
            yield same("embed", "exact", weights_of(rng, dtype, 41 * 768), dtype, 768, ids)


def norms(rng: np.random.Generator) -> Iterator[Case]:
    for rows, heads, dim in shapes.NORMS:
        x, z, w = normal(rng, rows, heads, dim), normal(rng, rows, heads, dim), normal(rng, dim)
        yield same("rms_norm", "row", x, w, 0.03)
        yield same("gated_rms_norm", "row", x, z, w, 0.03)


def swiglu_and_rope(rng: np.random.Generator) -> Iterator[Case]:
    for rows, dim in shapes.SWIGLUS:
        yield same("swiglu", "row", normal(rng, rows, dim), normal(rng, rows, dim))
    for rows, heads, dim, n_pairs in shapes.ROPES:
        angle = rng.uniform(0, 2 * np.pi, (rows, n_pairs))
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        for pairs in ("halves", "adjacent"):
            yield same("rope", "rope", normal(rng, rows, heads, dim), cos, sin, pairs=pairs)


def rounded(rng: np.random.Generator) -> Iterator[Case]:
    """Outputs quantised in the epilogue to 16 bits: compares the fp32 values and the dequantised codes."""
    for rows, heads, dim in ((1, 1, 5120), (3, 5, 96)):
        x, z, w = normal(rng, rows, heads, dim), normal(rng, rows, heads, dim), normal(rng, dim)
        gate, up = x.reshape(rows, -1), z.reshape(rows, -1)
        for op, arguments in (("rms_norm", (x, w, 0.03)), ("gated_rms_norm", (x, z, w, 0.03)), ("swiglu", (gate, up))):
            expected = partial(_with_dequantized, getattr(ops, op), rows, *arguments)
            yield Case(f"{op}_rounded", "int16", expected, (*arguments, 16), {}, partial(_and_dequantized, rows))


def reads(rng: np.random.Generator) -> Iterator[Case]:
    """The kernel that measures read bandwidth."""
    for size in (16, 1_000_016):
        x = rng.integers(0, 256, size, np.uint8)
        yield Case("read_memory", "exact", partial(_sum, x.view(np.uint32)), (x,), {}, _sum)


def _with_dequantized(op: Callable[..., Any], rows: int, *arguments: Any) -> Array:
    """[2 rows, dim]: like `_and_dequantized`, but without rounding."""
    y = np.asarray(op(*arguments)).reshape(rows, -1)
    return np.concatenate([y, y])


def _and_dequantized(rows: int, result: Parts) -> Array:
    """[2 rows, dim]: the rows, then the same rows dequantised: high and low codes, a scale per block of 32."""
    y = result[0].reshape(rows, -1)
    n = y.size
    high, low = result[1][: 2 * n].view(np.int8).astype(np.float32).reshape(2, -1, 32)
    scale = result[1][2 * n :].view(np.float32).reshape(2, -1, 1)[0]
    values = scale * (high + low / 254)
    return np.concatenate([y, values.reshape(rows, -1)])


def _sum(words: Array) -> Array:
    """[1]: the sum modulo 2^32."""
    return np.asarray([np.asarray(words, np.uint32).sum(dtype=np.uint32)])
