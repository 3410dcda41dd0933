"""Types of stored keys and values in fp64: encoders, decoders, and the planes of a page's bytes.

A page of a head holds the plane of codes, the plane of their highest bits and the plane of f16 scales; each has a row
per slot, 64 in all. A word of 32 bits holds values 0, 2, 4, ... in its low half and 1, 3, 5, ... in its high half.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
U8 = NDArray[np.uint8]

PAGE = 64
NUMBERS = {"f32": 32, "f16": 16, "bf16": 16, "fp8": 8}  # bits of plain numbers
OFFSETS = {"q8_0": 8, "q5_0": 5, "q4_0": 4}
MINIMA = {"q5_1": 5, "q4_1": 4}
LEVELS = {  # positive levels; codes count up from these, then down from their negatives
    "tq3_0": np.array([0.021460, 0.065717, 0.117832, 0.190685], np.float32),
    "wht4": np.array([5, 15, 25, 36, 48, 62, 79, 104], np.float32) / 256,
    "wht3": np.array([13, 40, 71, 113], np.float32) / 256,
}
# The scale of a unit vector of 128 values.
UNITS = {"tq3_0": 1.0, "wht4": 0.0022875143 * 256, "wht3": 0.0016663981 * 256}
TYPES = ("f32", "f16", "bf16", "fp8", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "tq3_0", "wht4", "wht3")

SIGNS_BEFORE = (0xE46A0359, 0x42F85949, 0xA4C63BBB, 0x49F250A9)
SIGNS_AFTER = (0x16ACEE90, 0x3F628FDC, 0xB7A5357A, 0xBEA56562)


@dataclass(frozen=True)
class Stored:
    """Rows of head_dim values as a page holds them."""

    codes: NDArray[np.uint32]  # [..., head_dim]; patterns of plain numbers
    scales: NDArray[np.float16]  # [..., groups], or [..., groups, 2] of scale and minimum


def is_rotated(kv: str) -> bool:
    return kv.lower() in LEVELS


def bits_of(kv: str) -> tuple[int, int]:
    """Bits of a code, and those of them in the plane of codes."""
    kv = kv.lower()
    bits = {**NUMBERS, **OFFSETS, **MINIMA, "tq3_0": 3, "wht4": 4, "wht3": 3}[kv]
    return bits, bits & ~1 if bits in (3, 5) else bits


def rotated_group(dim: int) -> int:
    return 128 if dim % 128 == 0 else 64 if dim % 64 == 0 else 32


def scale_shape(kv: str, dim: int) -> tuple[int, ...]:
    kv = kv.lower()
    if kv in NUMBERS:
        return (0,)
    if kv in ("wht4", "wht3"):
        return (dim // rotated_group(dim),)
    return (dim // 32, 2) if kv in MINIMA else (dim // 32,)


def slot_bytes(kv: str, dim: int) -> int:
    return dim * bits_of(kv)[0] // 8 + 2 * int(np.prod(scale_shape(kv, dim)))


# The bytes of pages: [..., 64, slot_bytes], a head's page as one run of bytes.


def unpacked(plane: U8, bits: int) -> NDArray[np.uint32]:
    """[..., bytes of a row] to [..., codes of a row]."""
    words = np.ascontiguousarray(plane).view("<u4")
    per_half = 16 // bits
    values = words[..., None] >> np.arange(0, 32, bits if bits < 32 else 32, dtype=np.uint32)
    values &= np.uint32(2**bits - 1)  # by place in the word, the low half first
    if bits < 32:
        values = np.moveaxis(values.reshape(*words.shape, 2, per_half), -2, -1)
    return values.reshape(*words.shape[:-1], -1)


def packed(codes: NDArray[np.uint32], bits: int) -> U8:
    if bits == 32:
        return np.ascontiguousarray(codes, "<u4").view(np.uint8)
    by_place = np.moveaxis(codes.reshape(*codes.shape[:-1], -1, 16 // bits, 2), -1, -2).reshape(
        *codes.shape[:-1], -1, 32 // bits
    )
    words = (by_place.astype(np.uint64) << np.arange(0, 32, bits, dtype=np.uint64)).sum(-1).astype("<u4")
    return words.view(np.uint8)


def split(pages: ArrayLike, kv: str, dim: int) -> Stored:
    """Codes and scales of pages [..., 64, slot]: bytes, or the numbers themselves."""
    given = np.ascontiguousarray(pages)
    flat = given.reshape(*given.shape[:-2], -1).view(np.uint8)
    bits, low_bits = bits_of(kv)
    shape = (*given.shape[:-2], PAGE)
    ends = np.cumsum([PAGE * dim * low_bits // 8, PAGE * dim * (bits - low_bits) // 8])
    codes = unpacked(flat[..., : ends[0]].reshape(*shape, -1), low_bits)
    if bits > low_bits:
        codes |= unpacked(flat[..., ends[0] : ends[1]].reshape(*shape, -1), 1) << np.uint32(low_bits)
    scales = np.ascontiguousarray(flat[..., ends[1] :]).view("<f2").reshape(*shape, *scale_shape(kv, dim))
    return Stored(codes, scales)


def joined(stored: Stored, kv: str) -> U8:
    """Bytes [..., 64, slot_bytes] of codes [..., 64, head_dim]."""
    bits, low_bits = bits_of(kv)
    lead = stored.codes.shape[:-2]
    planes = [packed(stored.codes & np.uint32(2**low_bits - 1), low_bits)]
    if bits > low_bits:
        planes.append(packed(stored.codes >> np.uint32(low_bits), 1))
    planes.append(np.ascontiguousarray(stored.scales, "<f2").reshape(*lead, PAGE, -1).view(np.uint8))
    return np.concatenate([plane.reshape(*lead, -1) for plane in planes], -1).reshape(*lead, PAGE, -1)


# The rotation.


def signs(words: tuple[int, ...], n: int) -> F64:
    return np.array([-1.0 if words[i // 32] >> i % 32 & 1 else 1.0 for i in range(n)])


def hadamard(n: int) -> F64:
    return np.array([[(-1.0) ** (i & j).bit_count() for j in range(n)] for i in range(n)]) / np.sqrt(n)


def rotation(n: int) -> F64:
    """The orthogonal matrix R of y = R x."""
    return signs(SIGNS_AFTER, n)[:, None] * hadamard(n) * signs(SIGNS_BEFORE, n)


def rotate(x: ArrayLike) -> F64:
    """Every group of the last axis."""
    given = np.asarray(x, np.float64)
    n = rotated_group(given.shape[-1])
    return (given.reshape(*given.shape[:-1], -1, n) @ rotation(n).T).reshape(given.shape)


def unrotate(y: ArrayLike) -> F64:
    given = np.asarray(y, np.float64)
    n = rotated_group(given.shape[-1])
    return (given.reshape(*given.shape[:-1], -1, n) @ rotation(n)).reshape(given.shape)


# fp8 is e4m3 without infinities: a sign, 4 bits of exponent, 3 of mantissa; all ones is NaN.


def fp8_values() -> F64:
    code = np.arange(128)
    exponent, mantissa = code >> 3, code & 7
    positive = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    positive[127] = np.nan
    return np.concatenate([positive, -positive])


def fp8_codes(x: F32) -> NDArray[np.uint32]:
    """The nearest number, of two the one of even code; beyond 448 saturated."""
    numbers = fp8_values()[:127]
    size = np.minimum(np.abs(np.nan_to_num(x.astype(np.float64), nan=0, posinf=448, neginf=-448)), 448)
    above = np.searchsorted(numbers, size).clip(1, 126)
    low, high = size - numbers[above - 1], numbers[above] - size
    code = np.where((low < high) | ((low == high) & (above % 2 == 1)), above - 1, above)
    code = np.where(np.isnan(x), 127, code)
    return (code + 128 * np.signbit(x)).astype(np.uint32)


# Rows of values to codes and back.


def encode(x: F32, kv: str) -> Stored:
    """Rows [..., head_dim]. Types of 32 values compute in fp32, as their definition does; rotated ones in fp64."""
    kv = kv.lower()
    x = np.ascontiguousarray(x, np.float32)
    none = np.zeros((*x.shape[:-1], 0), np.float16)
    if kv == "f32":
        return Stored(x.view(np.uint32), none)
    if kv == "f16":
        with np.errstate(over="ignore"):
            return Stored(x.astype(np.float16).view(np.uint16).astype(np.uint32), none)
    if kv == "bf16":
        bits = x.view(np.uint32)
        return Stored(np.where(np.isnan(x), bits >> 16 | 0x40, (bits + 0x7FFF + (bits >> 16 & 1)) >> 16), none)
    if kv == "fp8":
        return Stored(fp8_codes(x), none)
    return encode_levels(x, kv) if kv in LEVELS else encode_blocks(x, kv)


def encode_blocks(x: F32, kv: str) -> Stored:
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    low, high = blocks.min(-1, keepdims=True), blocks.max(-1, keepdims=True)
    bits = bits_of(kv)[0]
    half, most, one_half = np.float32(2 ** (bits - 1)), np.float32(2**bits - 1), np.float32(0.5)
    if kv in MINIMA:
        scale = (high - low) / most
    elif kv == "q8_0":
        scale = np.maximum(high, -low) / np.float32(127)
    else:
        scale = np.where(high >= -low, high, low) / -half
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
        scales = scale.astype(np.float16)
    if kv in MINIMA:
        codes = np.trunc((blocks - low) * inverse + one_half).clip(0, most)
        return Stored(codes.astype(np.uint32).reshape(x.shape), np.concatenate([scales, low.astype(np.float16)], -1))
    if kv == "q8_0":
        n = blocks * inverse
        codes = np.trunc(n + np.copysign(one_half, n)) + half
    else:
        codes = np.trunc(blocks * inverse + half + one_half).clip(0, most)
    return Stored(codes.astype(np.uint32).reshape(x.shape), scales[..., 0])


def normalised(x: ArrayLike, kv: str) -> tuple[F64, F64]:
    """Rotated groups [..., n] in units of the levels, and their lengths [..., 1]."""
    given = np.asarray(x, np.float64)
    n = rotated_group(given.shape[-1])
    groups = rotate(given).reshape(*given.shape[:-1], -1, n)
    length = np.linalg.norm(groups, axis=-1, keepdims=True)
    unit = np.where(length > 1e-10, np.sqrt(n / 128) / (np.maximum(length, 1e-10) * UNITS[kv]), 0)
    return groups * unit, length


def decision_points(kv: str) -> F64:
    """Between the magnitudes of neighbouring levels."""
    levels = LEVELS[kv].astype(np.float64)
    return (levels[:-1] + levels[1:]) / 2


def encode_levels(x: F32, kv: str) -> Stored:
    y, length = normalised(x, kv)
    levels = LEVELS[kv].astype(np.float64)
    index = np.searchsorted(decision_points(kv), np.abs(y), side="right")
    root = np.sqrt((levels[index] ** 2).sum(-1, keepdims=True))
    scale = np.where(length > 1e-10, length / root, length)
    scales = np.repeat(scale, y.shape[-1] // 32, -1) if kv == "tq3_0" else scale
    codes = (index + len(levels) * (y < 0)).astype(np.uint32)
    with np.errstate(over="ignore"):
        return Stored(codes.reshape(x.shape), scales.astype(np.float16).reshape(*x.shape[:-1], -1))


def decode(stored: Stored, kv: str, *, half_levels: bool = False) -> F64:
    """The stored values, exactly; of rotated types the rotated ones. half_levels: with levels rounded to f16, as GPU
    kernels hold them."""
    kv, codes = kv.lower(), stored.codes
    if kv == "f32":
        return codes.astype(np.uint32).view(np.float32).astype(np.float64)
    if kv == "f16":
        return codes.astype(np.uint16).view(np.float16).astype(np.float64)
    if kv == "bf16":
        return (codes.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if kv == "fp8":
        return fp8_values()[codes]
    scales = stored.scales.astype(np.float64)
    n_groups = scales.shape[-2] if kv in MINIMA else scales.shape[-1]
    grouped = codes.reshape(*codes.shape[:-1], n_groups, -1)
    if kv in MINIMA:
        values = grouped * scales[..., 0, None] + scales[..., 1, None]
    elif kv in OFFSETS:
        values = (grouped.astype(np.float64) - 2 ** (OFFSETS[kv] - 1)) * scales[..., None]
    else:
        levels = (LEVELS[kv].astype(np.float16) if half_levels else LEVELS[kv]).astype(np.float64)
        values = np.concatenate([levels, -levels])[grouped] * scales[..., None]
    return values.reshape(codes.shape)


def stored_values(pages: ArrayLike, kv: str, dim: int, *, half_levels: bool = False) -> F64:
    """[..., 64, head_dim] of pages; of rotated types the rotated values. half_levels: as decode()."""
    return decode(split(pages, kv, dim), kv, half_levels=half_levels)


def restored(x: F32, kv: str) -> F64:
    """x after a store and a load, rotated back where the type rotates."""
    values = decode(encode(x, kv), kv)
    return unrotate(values) if is_rotated(kv) else values
