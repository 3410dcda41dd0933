"""Products of fp8 and block-scaled operands by matrix units, in integers: the rule of MMA-Sim (arXiv 2511.10909).

A number is mantissa * 2^unit, and has an exponent, the place of its leading bit if it were normal. A term is a product,
or the sum of 16 products of fp4 numbers, with the exponents of its operands and scales added; a zero has the exponent
-126. Terms and c are cut to `bits` bits below the largest exponent, towards zero, and added. The sum is cut to 23 (or
13) bits after its leading one, towards zero; a zero has no sign. A NaN operand gives 0x7fffffff.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes, Ints, F32 = NDArray[np.uint8], NDArray[np.int64], NDArray[np.float32]
NAN, ZERO = 0x7FFFFFFF, -126
FP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])  # halves


@dataclass(frozen=True)
class Numbers:
    """mantissa * 2^unit; exponent: of the leading bit of a normal number; is_nan where there is no number."""

    mantissa: Ints
    unit: Ints
    exponent: Ints
    is_nan: NDArray[np.bool_]


def e4m3(codes: Bytes) -> Numbers:
    bits = codes.astype(np.int64)
    stored = bits >> 3 & 15
    exponent = np.maximum(stored, 1) - 7
    mantissa = np.where(bits & 128, -1, 1) * ((bits & 7) + np.where(stored > 0, 8, 0))
    return Numbers(mantissa, exponent - 3, exponent, bits & 127 == 127)


def e8m0(codes: Bytes) -> Numbers:
    exponent = codes.astype(np.int64) - 127
    return Numbers(np.ones_like(exponent), exponent, exponent, codes == 255)


def fp32(values: F32) -> Numbers:
    bits = np.ascontiguousarray(values).view(np.uint32).astype(np.int64)
    stored = bits >> 23 & 255
    exponent = np.maximum(stored, 1) - 127
    mantissa = np.where(bits >> 31, -1, 1) * ((bits & 0x7FFFFF) + np.where(stored > 0, 1 << 23, 0))
    return Numbers(mantissa, exponent - 23, exponent, (stored == 255) & (bits & 0x7FFFFF != 0))


def times(a: Numbers, b: Numbers) -> Numbers:
    return Numbers(a.mantissa * b.mantissa, a.unit + b.unit, a.exponent + b.exponent, a.is_nan | b.is_nan)


def cut(mantissa: Ints, shift: Ints) -> Ints:
    """mantissa * 2^shift without its fraction."""
    size = np.abs(mantissa)
    moved = np.where(shift >= 0, size << np.clip(shift, 0, 62), size >> np.clip(-shift, 0, 63))
    return np.sign(mantissa) * moved


def to_fp32(total: Ints, unit: Ints, bits: int) -> NDArray[np.uint32]:
    """fp32 bits of total * 2^unit, cut to `bits` bits after its leading one, or after 2^-126 if it is subnormal."""
    size = np.abs(total)
    leading = np.zeros_like(size)
    for step in (32, 16, 8, 4, 2, 1):
        is_larger = size >> leading >> step > 0
        leading += np.where(is_larger, step, 0)
    exponent = np.maximum(leading + unit, -126)
    kept = cut(size, unit - exponent + bits) << (23 - bits)  # in units of the 23rd bit
    stored = np.where(kept >> 23, exponent + 127, 0)
    found = np.where(stored >= 255, 255 << 23, stored << 23 | kept & 0x7FFFFF) | np.where(
        (total < 0) & (kept > 0), 1 << 31, 0
    )
    return found.astype(np.uint32)


def fused(terms: Numbers, c: F32, term_bits: int, result_bits: int) -> NDArray[np.uint32]:
    """terms: [..., n]; c: [...]. One step of a matrix unit."""
    start = fp32(c)
    largest = np.maximum(np.where(start.mantissa == 0, ZERO, start.exponent), terms.exponent.max(axis=-1))
    unit = largest - term_bits
    total = cut(start.mantissa, start.unit - unit) + cut(terms.mantissa, terms.unit - unit[..., None]).sum(axis=-1)
    found = to_fp32(total, unit, result_bits)
    return np.where(start.is_nan | terms.is_nan.any(axis=-1), np.uint32(NAN), found).astype(np.uint32)


def products(a: Bytes, b: Bytes, scale: Numbers | None = None) -> Numbers:
    """The terms of e4m3 products."""
    terms = times(e4m3(a), e4m3(b))
    if scale is not None:
        terms = times(terms, scale)
    return Numbers(terms.mantissa, terms.unit, np.where(terms.mantissa == 0, ZERO, terms.exponent), terms.is_nan)


def fp8_sums(a: Bytes, b: Bytes, c: F32, sum_bits: int) -> NDArray[np.uint32]:
    """a, b: [..., 32]. 13 bits, sm_89: half of the products after the other. 25 bits, sm_120."""
    if sum_bits == 25:
        return fused(products(a, b), c, 25, 23)
    first = fused(products(a[..., :16], b[..., :16]), c, 13, 13).view(np.float32)
    return fused(products(a[..., 16:], b[..., 16:]), first, 13, 13)


def mxfp8_sums(a: Bytes, b: Bytes, c: F32, scales_a: Bytes, scales_b: Bytes) -> NDArray[np.uint32]:
    """scales: [..., 1]"""
    return fused(products(a, b, times(e8m0(scales_a), e8m0(scales_b))), c, 25, 23)


def fp4_sums(a: Bytes, b: Bytes, c: F32, scale: Numbers) -> NDArray[np.uint32]:
    """a, b: [..., 32], 64 numbers; scale: [..., 4], of 16 products each."""

    def groups(packed: Bytes) -> Ints:
        codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], 4, 16)
        return FP4[codes]

    x, y = groups(a), groups(b)
    has_product = (x * y != 0).any(axis=-1) & (scale.mantissa != 0)
    terms = Numbers(
        (x * y).sum(axis=-1) * scale.mantissa, scale.unit - 2, np.where(has_product, scale.exponent, ZERO), scale.is_nan
    )
    return fused(terms, c, 35, 23)


def nvfp4_sums(a: Bytes, b: Bytes, c: F32, scales_a: Bytes, scales_b: Bytes) -> NDArray[np.uint32]:
    """scales: [..., 4], whose sign is ignored"""
    return fp4_sums(a, b, c, times(e4m3(scales_a & 127), e4m3(scales_b & 127)))


def mxfp4_sums(a: Bytes, b: Bytes, c: F32, scales_a: Bytes, scales_b: Bytes) -> NDArray[np.uint32]:
    """scales: [..., 2]"""
    scale = times(e8m0(scales_a), e8m0(scales_b))
    twice = [np.repeat(part, 2, axis=-1) for part in (scale.mantissa, scale.unit, scale.exponent)]
    return fp4_sums(a, b, c, Numbers(*twice, np.repeat(scale.is_nan, 2, axis=-1)))
