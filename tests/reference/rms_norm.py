"""Root-mean-square norms in fp64."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

F64 = NDArray[np.float64]


def wide(x: ArrayLike) -> F64:
    return np.asarray(x, np.float64)


def sigmoid(x: ArrayLike) -> F64:
    return np.exp(-np.logaddexp(0, -wide(x)))  # keeps its relative accuracy where the result is tiny


def silu(x: ArrayLike) -> F64:
    return wide(x) * sigmoid(x)


def rms_norm(x: ArrayLike, w: ArrayLike, eps: float) -> F64:
    """x / sqrt(mean(x^2) + eps) * w over the last axis."""
    return wide(x) / np.sqrt(np.mean(wide(x) ** 2, -1, keepdims=True) + float(np.float32(eps))) * wide(w)


def gated_rms_norm(o: ArrayLike, z: ArrayLike, w: ArrayLike, eps: float) -> F64:
    """The norm first, the gate after."""
    return rms_norm(o, w, eps) * silu(z)
