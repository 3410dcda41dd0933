"""Prompts with fp8 weights on sm_90: how x is rounded, and the sums of the matrix units.

The sums follow the rule of MMA-Sim (arXiv 2511.10909): a wgmma adds 32 products and the sum so far. Each product
has the sum of its operands' exponents. All are truncated to 13 bits below the largest exponent and added exactly; the
result is truncated to 13 bits after its leading one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32, F64 = NDArray[np.float32], NDArray[np.float64]
BLOCK, STEP, SUM_BITS = 128, 32, 13
MAX, LEAST_BLOCK = np.float32(448), np.float32(1e-30)
MIN_EXPONENT, MIN_SUM_EXPONENT = -6, -126  # of normal numbers: e4m3, fp32


def to_e4m3(values: F32) -> F32:
    """The nearest e4m3 numbers, half to even, at most 448."""
    clipped = np.clip(values, -MAX, MAX)
    step = np.ldexp(np.float32(1), exponents(clipped, MIN_EXPONENT) - 3)
    rounded: F32 = (np.rint(clipped / step) * step).astype(np.float32)
    return rounded


def round_x(x: F32) -> tuple[F32, F32]:
    """(e4m3 numbers [rows, n_in], scales [rows, n_in / 128])."""
    blocks = x.reshape(len(x), -1, BLOCK)
    largest = np.maximum(np.abs(blocks).max(axis=2), LEAST_BLOCK)
    return to_e4m3(blocks * (MAX / largest)[:, :, None]).reshape(x.shape), largest * (np.float32(1) / MAX)


def rounded_x(x: F32) -> F64:
    """The values that the products see."""
    codes, scale = round_x(x)
    return codes.astype(np.float64) * np.repeat(scale.astype(np.float64), BLOCK, axis=1)


def exponents(values: F32, least: int) -> NDArray[np.int32]:
    found: NDArray[np.int32] = np.where(values == 0, least, np.maximum(np.frexp(values)[1] - 1, least)).astype(np.int32)
    return found


def truncated(values: F64, unit: F64) -> F64:
    kept: F64 = np.trunc(values / unit) * unit
    return kept


def block_sums(a: F32, b: F32) -> F32:
    """[rows of a, rows of b]: the sums of 128 products of e4m3 numbers that the matrix units of sm_90 compute."""
    sums = np.zeros((len(a), len(b)), np.float64)
    for first in range(0, BLOCK, STEP):
        x, y = a[:, None, first : first + STEP], b[None, :, first : first + STEP]
        products = x.astype(np.float64) * y
        of_products = np.where(products == 0, MIN_SUM_EXPONENT, exponents(x, MIN_EXPONENT) + exponents(y, MIN_EXPONENT))
        largest = np.maximum(of_products.max(axis=2), exponents(sums.astype(np.float32), MIN_SUM_EXPONENT))
        unit = np.ldexp(1.0, largest - SUM_BITS)
        total = truncated(sums, unit) + truncated(products, unit[:, :, None]).sum(axis=2)
        leading = np.where(total == 0, 0, np.frexp(total)[1] - 1)
        sums = truncated(total, np.ldexp(1.0, leading - SUM_BITS))
    return sums.astype(np.float32)
