"""GeGLU, the norm of a branch, and the soft cap, in fp64."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from reference.rms_norm import F64, wide


def gelu(x: F64) -> F64:
    """The tanh approximation."""
    y: F64 = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return y


def geglu(gate: ArrayLike, up: ArrayLike) -> F64:
    return gelu(wide(gate)) * wide(up)


def add_norm(x: ArrayLike, z: ArrayLike, w: ArrayLike, eps: float, scale: float) -> F64:
    branch = wide(z)
    size = np.sqrt(np.mean(branch * branch, axis=-1, keepdims=True) + float(np.float32(eps)))
    y: F64 = float(np.float32(scale)) * (wide(x) + branch / size * wide(w))
    return y


def soft_cap(x: ArrayLike, cap: float) -> F64:
    y: F64 = cap * np.tanh(wide(x) / cap)
    return y
