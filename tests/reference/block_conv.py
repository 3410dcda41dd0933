"""DFlash 2's convolution over a block in fp64: tap t looks t rows back, zeros before the block."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from reference.rms_norm import F64, wide

F32 = NDArray[np.float32]


def block_conv(x: F32, base: F32, kernels: F32, group: int, add: F32 | None = None) -> F64:
    """x [rows, dim], base [taps, dim], kernels [rows, taps, dim / group]."""
    y = np.zeros_like(wide(x)) if add is None else wide(add).copy()
    for t in range(min(len(base), len(x))):
        weights = wide(base)[t] + np.repeat(wide(kernels)[t:, t], group, axis=-1)
        y[t:] += weights * wide(x)[: len(x) - t]
    return y
