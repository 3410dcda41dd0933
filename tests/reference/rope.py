"""Rotary position embedding in fp64."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from reference.rms_norm import F64, wide


def plain_frequencies(theta: float, n_rot: int) -> F64:
    """[n_rot / 2] radians a position."""
    frequency: F64 = theta ** (-np.arange(0, n_rot, 2) / n_rot)
    return frequency


def llama3_frequencies(theta: float, n_rot: int, factor: float, low: float, high: float, original: float) -> F64:
    """Llama 3.1: wavelengths above original / low are stretched by the factor, those below original / high kept."""
    frequency = plain_frequencies(theta, n_rot)
    turns = original / (2 * np.pi / frequency)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return frequency * (kept + (1 - kept) / factor)


def yarn_frequencies(
    theta: float,
    n_rot: int,
    factor: float,
    original: float,
    beta_fast: float = 32,
    beta_slow: float = 1,
    truncate: bool = True,
) -> F64:
    """YaRN (arXiv 2309.00071): pairs of more than beta_fast turns over the original context are kept, pairs of fewer
    than beta_slow stretched by the factor, with a ramp between that is linear in the pair."""
    at = [n_rot / 2 * np.log(original / (2 * np.pi * turns)) / np.log(theta) for turns in (beta_fast, beta_slow)]
    first, last = (np.floor(at[0]), np.ceil(at[1])) if truncate else at
    first, last = max(first, 0), min(last, n_rot - 1)
    stretched = np.clip((np.arange(n_rot // 2) - first) / max(last - first, 1e-3), 0, 1)
    return plain_frequencies(theta, n_rot) * (1 - stretched + stretched / factor)


def yarn_scale(factor: float, weight: float = 1) -> float:
    """YaRN's attention factor, by which cos and sin are multiplied."""
    return float(0.1 * weight * np.log(factor) + 1) if factor > 1 else 1.0


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
