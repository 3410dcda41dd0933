"""Inputs of DFlash 2's convolution."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from reference import block_conv as reference

SHAPES = ((1, 3, 5, 5), (2, 3, 12, 1), (16, 3, 64, 16), (15, 8, 66, 6), (16, 4, 1280, 20), (7, 1, 24, 8))


def block(
    rng: np.random.Generator, rows: int, taps: int, dim: int, group: int, adds: bool
) -> tuple[tuple[Any, ...], NDArray[np.float64]]:
    """The arguments, and the size of each sum's terms. The kernels are one of two sides, NaN the other."""
    x, base = rng.normal(size=(rows, dim)).astype(np.float32), rng.normal(size=(taps, dim)).astype(np.float32)
    both = np.full((rows, 2, taps, dim // group), np.nan, np.float32)
    both[:, 1] = rng.normal(size=(rows, taps, dim // group))
    add = rng.normal(size=(rows, dim)).astype(np.float32) if adds else None
    arguments = (x, base, both[:, 1], group, add)
    size = reference.block_conv(*(None if a is None else np.abs(a) for a in (x, base, both[:, 1])), group,
                                None if add is None else np.abs(add))  # type: ignore[arg-type]  # fmt: skip
    return arguments, size
