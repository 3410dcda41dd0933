"""Cases of the ops of vision towers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lucebox.selftest import shapes
from lucebox.selftest.case import Array, Case, case
from lucebox.selftest.inputs import normal

__all__ = ["heads_of", "image_of", "towers"]


def towers(rng: np.random.Generator) -> Iterator[Case]:
    for rows, dim in shapes.LAYER_NORMS:
        x, w, b = normal(rng, rows, dim), normal(rng, dim), normal(rng, dim)
        yield case("layer_norm", "row", x, w, b, 1e-6)
        for is_exact in (0, 1):
            yield case("bias_gelu", "row", 3 * x, b, is_exact)
    for height, columns, patch, merge in shapes.PATCHES:
        rgb, level = image_of(rng, height, columns, patch)
        first, n = merge * merge, height * columns
        yield case("read_patches", "exact", rgb, level, patch, merge, height, columns, first, n - first)
        y, table = normal(rng, n - first, 8), normal(rng, 5, 5, 8)
        yield case("add_positions", "row", y, table, height, columns, merge, first)
        yield case("add_axis_positions", "row", y, normal(rng, 2, 9, 8), columns, merge, first)
    for shape in shapes.POOLS:
        yield case("pool_patches", "row", normal(rng, *shape), 3.7, normal(rng, shape[2]), normal(rng, shape[2]))
        yield case("clamp", "exact", normal(rng, shape[0], shape[2]), -0.5, 1.25)
    for rows, heads, dim, padded in shapes.VISION_HEADS:
        for dtype in ("F32", "F16"):
            limit = "row" if dtype == "F32" else "attention_f16"
            for by_axis in (0, 1) if dim % 8 == 0 else (0,):
                yield case("split_heads", limit, *heads_of(rng, rows, heads, dim, padded, dtype), by_axis, unit=10.0)
        yield case("merge_heads", "exact", normal(rng, heads, rows, padded), dim)


def image_of(rng: np.random.Generator, height: int, columns: int, patch: int) -> tuple[Array, Array]:
    """An image of height x columns patches, and the values of its bytes."""
    rgb = rng.integers(0, 256, (height * patch, columns * patch, 3), np.uint8)
    return rgb, normal(rng, 3, 256)


def heads_of(
    rng: np.random.Generator, rows: int, heads: int, dim: int, padded: int, dtype: str, first: int = 60
) -> tuple[object, ...]:
    """The arguments of `split_heads` whose rows begin near the end of the first page."""
    angle = rng.uniform(0, 6, (rows, dim // 2))
    shape = ((first + rows) // 64 + 1, heads, 64, padded)
    pages = np.zeros(shape, np.float32 if dtype == "F32" else np.uint16)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    return (
        normal(rng, rows, 3, heads, dim), normal(rng, 3, heads, dim), cos, sin, pages, pages.copy(), dtype, padded,
        first, heads, dim,
    )  # fmt: skip
