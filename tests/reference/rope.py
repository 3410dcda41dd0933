"""Rotary position embedding in fp64."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from reference.rms_norm import F64, wide


def rope_table(
    pos: NDArray[np.int32], axis: NDArray[np.uint8], inv_freq: ArrayLike, scale: float = 1.0
) -> tuple[F64, F64]:
    """scale * cos, scale * sin [rows, pairs] of pos [3, rows]; pair i follows the position row axis[i]."""
    angle = wide(pos)[axis].T * wide(inv_freq)
    return scale * np.cos(angle), scale * np.sin(angle)


def rope(x: ArrayLike, cos: ArrayLike, sin: ArrayLike, pairs: str) -> F64:
    """Rotates the first 2 * pairs values of x [rows, heads, dim]."""
    y = wide(x).copy()
    c, s = wide(cos)[:, None], wide(sin)[:, None]
    n = c.shape[-1]
    first, second = (slice(0, n), slice(n, 2 * n)) if pairs == "halves" else (slice(0, 2 * n, 2), slice(1, 2 * n, 2))
    a, b = y[..., first].copy(), y[..., second].copy()
    y[..., first], y[..., second] = a * c - b * s, b * c + a * s
    return y
