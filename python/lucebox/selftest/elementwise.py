"""Cases of ops on rows and single values: embeddings, norms, SwiGLU, RoPE, rounded outputs, memory reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from lucebox.selftest import ops, shapes
from lucebox.selftest.case import Array, Case, Parts, case
from lucebox.selftest.inputs import BLOCKS, normal, weights_of


def embeds(rng: np.random.Generator) -> Iterator[Case]:
    for dtype in BLOCKS:
        for rows in (1, 7):
            ids = rng.integers(0, 41, rows, np.int32)
            yield case("embed", "exact", weights_of(rng, dtype, 41 * 768), dtype, 768, ids)


def norms(rng: np.random.Generator) -> Iterator[Case]:
    for rows, heads, dim in shapes.NORMS:
        x, z, w = normal(rng, rows, heads, dim), normal(rng, rows, heads, dim), normal(rng, dim)
        yield case("rms_norm", "row", x, w, 0.03)
        yield case("gated_rms_norm", "row", x, z, w, 0.03)


def swiglu_and_rope(rng: np.random.Generator) -> Iterator[Case]:
    for rows, dim in shapes.SWIGLUS:
        yield case("swiglu", "row", normal(rng, rows, dim), normal(rng, rows, dim))
        yield case("geglu", "row", normal(rng, rows, dim), normal(rng, rows, dim))
        yield case("add_norm", "row", *(normal(rng, *of) for of in ((rows, dim), (rows, dim), (dim,))), 0.03, 0.7)
        yield case("soft_cap", "row", normal(rng, rows, dim), 2.0)
    for rows, heads, dim, n_pairs in shapes.ROPES:
        angle = rng.uniform(0, 2 * np.pi, (rows, n_pairs))
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        for pairs in ("halves", "adjacent"):
            yield case("rope", "rope", normal(rng, rows, heads, dim), cos, sin, pairs=pairs)


def rounded(rng: np.random.Generator) -> Iterator[Case]:
    """Outputs quantised in the epilogue to 16 bits: compares the fp32 values and the dequantised codes."""
    for rows, heads, dim in ((1, 1, 5120), (3, 5, 96)):
        x, z, w = normal(rng, rows, heads, dim), normal(rng, rows, heads, dim), normal(rng, dim)
        gate, up = x.reshape(rows, -1), z.reshape(rows, -1)
        for op, arguments in (("rms_norm", (x, w, 0.03)), ("gated_rms_norm", (x, z, w, 0.03)), ("swiglu", (gate, up))):
            reference = partial(_twice, getattr(ops, op))
            yield case(f"{op}_rounded", "int16", *arguments, 16, reference=reference, kept=partial(_dequantized, rows))


def reads(rng: np.random.Generator) -> Iterator[Case]:
    """The kernel that measures read bandwidth."""
    for size in (16, 1_000_016):
        x = rng.integers(0, 256, size, np.uint8)
        yield case("read_memory", "exact", x, reference=lambda x: [x.view(np.uint32)], kept=_sum)


def _twice(op: Callable[..., Array], *arguments: Any) -> Parts:
    """The result without rounding, for y and for its codes."""
    y = op(*arguments[:-1])
    return [y, y]


def _dequantized(rows: int, parts: Parts) -> Parts:
    """[2 rows, dim]: y, and its codes dequantised: high and low codes, a scale per block of 32."""
    y, codes = (part.reshape(-1) for part in parts)
    if codes.dtype == np.uint8:
        high, low = codes[: 2 * y.size].view(np.int8).astype(np.float32).reshape(2, -1, 32)
        scale = codes[2 * y.size :].view(np.float32).reshape(2, -1, 1)[0]
        codes = (scale * (high + low / 254)).reshape(-1)
    return [np.concatenate([y, codes]).reshape(2 * rows, -1)]


def _sum(parts: Parts) -> Parts:
    """[1]: the sum modulo 2^32."""
    return [np.asarray([parts[0].sum(dtype=np.uint32)])]
