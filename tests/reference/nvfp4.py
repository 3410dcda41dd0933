"""Prompts of NVFP4 weights with NVFP4 activations: how x is rounded, and the sums of the matrix units."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from reference import fp8, narrow_matrix

F32, F64, Bytes = NDArray[np.float32], NDArray[np.float64], NDArray[np.uint8]
BLOCK, STEP = 16, 64
MAX, MAX_SCALE, LEAST = np.float32(6), np.float32(448), np.float32(1e-30)
MIDDLES = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5])  # between two numbers; a tie goes to the even code
VALUES = narrow_matrix.FP4 / 2


def to_e2m1(values: F32) -> Bytes:
    """Codes of the nearest e2m1 numbers, half to even, at most 6."""
    size = np.abs(values).astype(np.float64)
    code = np.searchsorted(MIDDLES, size)  # a tie counts as below
    is_tie = np.isin(size, MIDDLES) & (code % 2 == 1)
    return (code + is_tie + np.where(np.signbit(values), 8, 0)).astype(np.uint8)


def e4m3_codes(values: F32) -> Bytes:
    """Codes of numbers that are e4m3 and positive."""
    grid = narrow_matrix.e4m3(np.arange(127, dtype=np.uint8))
    return np.searchsorted(grid.mantissa * 2.0**grid.unit, values).astype(np.uint8)


def round_x(x: F32) -> tuple[Bytes, Bytes, F32]:
    """(codes [rows, n_in], e4m3 codes of the scales [rows, n_in / 16], factors [rows])."""
    blocks = x.reshape(len(x), -1, BLOCK)
    largest = np.maximum(np.abs(x).max(axis=1), LEAST)[:, None]
    inverse = MAX * MAX_SCALE / largest
    scale = fp8.to_e4m3(np.abs(blocks).max(axis=2) * inverse * (np.float32(1) / MAX))
    with np.errstate(divide="ignore"):
        factor = np.where(scale > 0, inverse / scale, np.float32(0))
    codes = to_e2m1(blocks * factor[:, :, None])
    return codes.reshape(x.shape), e4m3_codes(scale), (largest * (np.float32(1) / (MAX * MAX_SCALE)))[:, 0]


def rounded_x(x: F32) -> F64:
    """The values that the products see."""
    codes, scales, factors = round_x(x)
    size = narrow_matrix.e4m3(scales)
    scale = size.mantissa * 2.0**size.unit
    return VALUES[codes] * np.repeat(scale, BLOCK, axis=1) * factors[:, None]


def packed(codes: Bytes) -> Bytes:
    """Two codes in a byte."""
    return codes[..., ::2] | codes[..., 1::2] << 4


def products(w: Bytes, n_out: int, factors: F32, x: F32) -> F32:
    """The product by the rule of the matrix units, 64 values at a time. w: blocks of NVFP4; factors: of their rows."""
    blocks = w.reshape(n_out, -1, 36)
    bytes_of = blocks[:, :, 4:].reshape(n_out, -1, 4, 8)  # 16 values: the first eight in the low nibbles
    w_codes = np.concatenate([bytes_of & 15, bytes_of >> 4], axis=-1).reshape(n_out, -1, 64)
    x_codes, x_scales, x_factors = round_x(x)
    sums = np.zeros((len(x), n_out), np.float32)
    for step in range(x.shape[1] // STEP):
        of_x = packed(x_codes[:, step * STEP : (step + 1) * STEP])
        a, b = np.broadcast_arrays(packed(w_codes[None, :, step]), of_x[:, None])
        scales = np.broadcast_arrays(blocks[None, :, step, :4], x_scales[:, None, step * 4 : step * 4 + 4])
        sums = narrow_matrix.nvfp4_sums(a, b, sums, *scales).view(np.float32)
    return sums * (factors[None] * x_factors[:, None])
