"""Random inputs: fp32 values, weights of every type, accepted paths and trees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lucebox.selftest.case import Array

__all__ = [
    "BLOCKS",
    "BlockType",
    "ancestors_of",
    "as_fp32",
    "converted",
    "n_values",
    "normal",
    "path",
    "raw_bytes",
    "weights_of",
]


@dataclass(frozen=True, slots=True)
class BlockType:
    """The parts of a weight block's layout that matter when filling it with random bytes."""

    values: int
    bytes: int
    scales: tuple[int, ...]
    """Byte offsets of the f16 scales; every other byte may have any value."""


BLOCKS = {
    "F32": None,
    "F16": None,
    "BF16": None,
    "Q8_0": BlockType(32, 34, (0,)),
    "Q4_0": BlockType(32, 18, (0,)),
    "Q4_1": BlockType(32, 20, (0, 2)),
    "Q5_0": BlockType(32, 22, (0,)),
    "Q5_1": BlockType(32, 24, (0, 2)),
    "Q2_K": BlockType(256, 84, (80, 82)),
    "Q3_K": BlockType(256, 110, (108,)),
    "Q4_K": BlockType(256, 144, (0, 2)),
    "Q5_K": BlockType(256, 176, (0, 2)),
    "Q6_K": BlockType(256, 210, (208,)),
    "IQ4_NL": BlockType(32, 18, (0,)),
    "IQ4_XS": BlockType(256, 136, (0,)),
    "MXFP4": BlockType(32, 17, ()),
    "NVFP4": BlockType(64, 36, ()),
    "F8_E4M3": BlockType(128, 132, ()),
}


def normal(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return rng.standard_normal(shape, np.float32)


def raw_bytes(values: Array) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def as_fp32(data: Array, dtype: str) -> NDArray[np.float32]:
    """Bytes of F32, F16 or BF16 as fp32."""
    if dtype == "BF16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    values: NDArray[np.float32] = data.view(np.float16 if dtype == "F16" else np.float32).astype(np.float32)
    return values


def converted(values: Array, dtype: str) -> NDArray[np.uint8]:
    """The bytes of fp32 values as F32, F16 or BF16, rounded to nearest even."""
    data = raw_bytes(values)
    if dtype == "F32":
        return data
    with np.errstate(over="ignore"):
        halves = data.view(np.float32).astype(np.float16)
    words = data.view(np.uint32)
    return raw_bytes(halves if dtype == "F16" else ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16))


def rounded_to_fp8(x: Array) -> Array:
    """x as devices with fp8 matrix units round it: e4m3 numbers, and a scale per row and 128 values."""
    blocks = x.reshape(len(x), -1, 128)
    largest = np.maximum(np.abs(blocks).max(axis=2, keepdims=True), np.float32(1e-30))
    codes = _to_e4m3(blocks * (np.float32(448) / largest))
    return np.asarray(codes * (largest * (np.float32(1) / np.float32(448)))).reshape(x.shape)


def rounded_to_fp4(x: Array) -> Array:
    """x as devices round it to NVFP4: e2m1 numbers, an e4m3 scale per 16 values and a factor per row."""
    blocks = x.reshape(len(x), -1, 16)
    largest = np.maximum(np.abs(x).max(axis=1), np.float32(1e-30))[:, None, None]
    inverse = np.float32(6 * 448) / largest
    scale = _to_e4m3(np.abs(blocks).max(axis=2, keepdims=True) * inverse * (np.float32(1) / np.float32(6)))
    with np.errstate(divide="ignore"):
        factor = np.where(scale > 0, inverse / scale, np.float32(0))
    values = np.clip(blocks * factor, -6, 6)
    step = np.ldexp(np.float32(1), np.maximum(np.frexp(values)[1] - 1, 0) - 1)  # between e2m1 numbers
    return np.asarray(np.rint(values / step) * step * scale / inverse).astype(np.float32).reshape(x.shape)


def _to_e4m3(values: Array) -> Array:
    """The nearest e4m3 numbers of values up to 448."""
    step = np.ldexp(np.float32(1), np.maximum(np.frexp(values)[1] - 1, -6) - 3)  # between e4m3 numbers
    return np.asarray(np.minimum(np.rint(values / step) * step, np.float32(448)))


def n_values(w: Array, dtype: str) -> int:
    """Number of values in the bytes of weights."""
    block = BLOCKS[dtype]
    return w.size // block.bytes * block.values if block else w.size // (4 if dtype == "F32" else 2)


def weights_of(rng: np.random.Generator, dtype: str, count: int) -> NDArray[np.uint8]:
    """The bytes of `count` random weights."""
    block = BLOCKS[dtype]
    if block is None:
        return converted(normal(rng, count), dtype)
    blocks = rng.integers(0, 256, (count // block.values, block.bytes), np.uint8)
    for at in block.scales:
        scale = rng.uniform(0.001, 0.01, (len(blocks), 1)).astype(np.float16)
        blocks[:, at : at + 2] = scale.view(np.uint8)
    if dtype == "MXFP4":
        blocks[:, 0] = rng.integers(116, 124, len(blocks))  # the exponents: scales of 2^-12 to 2^-5
    if dtype == "NVFP4":
        blocks[:, :4] = rng.integers(8, 40, (len(blocks), 4))  # scales of 2^-6 to 2^-2
    if dtype == "F8_E4M3":
        blocks[(blocks & 0x7F) == 0x7F] = 0  # NaN
        blocks[:, :4] = rng.uniform(0.001, 0.01, (len(blocks), 1)).astype(np.float32).view(np.uint8)
    return blocks.reshape(-1)


def path(rng: np.random.Generator, rows: int) -> NDArray[np.int32]:
    """Rows of an append that a commit accepts, each with probability 1/2."""
    return np.flatnonzero(rng.integers(0, 2, rows)).astype(np.int32)


def ancestors_of(parent: NDArray[np.int32]) -> NDArray[np.uint64]:
    """[rows] bit masks of each row's ancestors and itself."""
    masks = np.zeros(len(parent), np.uint64)
    for i, p in enumerate(parent):
        masks[i] = (masks[p] if p >= 0 else np.uint64(0)) | np.uint64(1 << i)
    return masks
