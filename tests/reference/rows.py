"""Softmax and the largest value in fp64."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from reference.rms_norm import F64, wide


def softmax(x: ArrayLike, scale: float) -> F64:
    scaled = wide(x) * float(np.float32(scale))
    with np.errstate(invalid="ignore"):
        e = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)


def arg_max(x: ArrayLike) -> NDArray[np.int32]:
    """The lowest index of the largest value; NaN is never it."""
    value = wide(x)
    return np.where(np.isnan(value), -np.inf, value).argmax(axis=-1).astype(np.int32)
