"""Products with a weight matrix in fp64, from the same bytes and the same rounded activations as the engine."""

from __future__ import annotations

import gguf
import numpy as np
from gguf.quants import dequantize
from numpy.typing import NDArray

F32, F64 = NDArray[np.float32], NDArray[np.float64]

# Where the f16 scales of a block stand; random bytes there would be infinities and NaN.
F16_AT = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": (), "NVFP4": (),
}  # fmt: skip
BLOCK_TYPES = tuple(F16_AT)
# Without kernels of their own on a device. IQ1_M spreads its f16 over four words.
CODEBOOK_F16_AT = {
    "IQ1_S": (0,), "IQ1_M": (), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,), "IQ3_XXS": (0,), "IQ3_S": (0,),
    "TQ1_0": (52,), "TQ2_0": (64,),
}  # fmt: skip
CODEBOOK_TYPES = tuple(CODEBOOK_F16_AT)
SCALES_AT = F16_AT | CODEBOOK_F16_AT
PLAIN_TYPES = ("F32", "F16", "BF16")
FP8 = "F8_E4M3"  # blocks that the loader makes of a checkpoint: a scale in fp32, then 128 codes


def block_size(dtype: str) -> tuple[int, int]:
    """(values, bytes) of a block."""
    return (128, 132) if dtype == FP8 else gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype]]


def random_weights(dtype: str, count: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Bytes of `count` values near 1: every code and every small scale occurs, the f16 scales are finite."""
    if dtype == "F32":
        return rng.normal(size=count).astype(np.float32).view(np.uint8)
    if dtype == "F16":
        return rng.normal(size=count).astype(np.float16).view(np.uint8)
    if dtype == "BF16":
        return (rng.normal(size=count).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    values, n_bytes = block_size(dtype)
    blocks = rng.integers(0, 256, (count // values, n_bytes), dtype=np.uint8)
    if dtype == FP8:
        blocks[(blocks & 0x7F) == 0x7F] = 0  # NaN
        blocks[:, :4] = rng.uniform(-0.01, 0.01, (len(blocks), 1)).astype(np.float32).view(np.uint8)
        return blocks.reshape(-1)
    for at in SCALES_AT[dtype]:
        blocks[:, at : at + 2] = rng.normal(0, 0.1, (len(blocks), 1)).astype(np.float16).view(np.uint8)
    if dtype == "MXFP4":
        blocks[:, 0] = rng.integers(120, 132, len(blocks))
    if dtype == "NVFP4":
        blocks[:, :4] = rng.integers(0, 64, (len(blocks), 4))
    if dtype == "IQ1_M":
        put_iq1_m_scale(blocks, rng.normal(0, 0.1, len(blocks)).astype(np.float16))
    return blocks.reshape(-1)


def put_iq1_m_scale(blocks: NDArray[np.uint8], scale: NDArray[np.float16]) -> None:
    """Bits 4i to 4i + 3 of the f16 are the top bits of word i of the last eight bytes."""
    for i in range(4):
        high = (scale.view(np.uint16) >> 4 * i & 15).astype(np.uint8)
        blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | high << 4


def iq1_m_scale(blocks: NDArray[np.uint8]) -> NDArray[np.float16]:
    parts = [(blocks[:, 49 + 2 * i] >> 4).astype(np.uint16) << 4 * i for i in range(4)]
    return np.bitwise_or.reduce(parts).view(np.float16)


def multiplied(raw: NDArray[np.uint8], dtype: str, factor: float) -> NDArray[np.uint8]:
    """Blocks with their scales times a factor; where scales are powers of two, the nearest one."""
    blocks = raw.reshape(-1, block_size(dtype)[1]).copy()
    for at in SCALES_AT[dtype]:
        scale = blocks[:, at : at + 2].copy().view(np.float16)
        blocks[:, at : at + 2] = (scale.astype(np.float32) * factor).astype(np.float16).view(np.uint8)
    if dtype == "MXFP4":
        blocks[:, 0] = blocks[:, 0].astype(int) + round(np.log2(factor))
    if dtype == "NVFP4":
        blocks[:, :4] = np.clip(blocks[:, :4].astype(int) + 8 * round(np.log2(factor)), 0, 126)
    if dtype == "IQ1_M":
        put_iq1_m_scale(blocks, (iq1_m_scale(blocks).astype(np.float32) * factor).astype(np.float16))
    return blocks.reshape(-1)


def decode(w: NDArray[np.uint8], dtype: str) -> NDArray[np.float32]:
    """The values as gguf-py has them."""
    if dtype == FP8:
        blocks = w.reshape(-1, 132)
        return (e4m3_values()[blocks[:, 4:]] * blocks[:, :4].copy().view(np.float32)).reshape(-1)
    if dtype in SCALES_AT:
        return dequantize(w.reshape(-1, block_size(dtype)[1]), gguf.GGMLQuantizationType[dtype]).reshape(-1)
    if dtype == "BF16":
        return (w.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return w.view({"F32": np.float32, "F16": np.float16}[dtype]).astype(np.float32)


def e4m3_values() -> NDArray[np.float32]:
    """The value of each code: sign, four bits of exponent (bias 7), three of fraction; NaN, no infinities."""
    codes = np.arange(256)
    exponent, fraction = codes >> 3 & 15, codes & 7
    values = np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7))
    values[(codes & 127) == 127] = np.nan
    return (np.where(codes < 128, 1, -1) * values).astype(np.float32)


def scaled_nvfp4(blocks: NDArray[np.uint8], factors: F32, divisors: F32 | None = None) -> NDArray[np.uint8]:
    """Rows of NVFP4_SCALED: each row's factor, or the inverse of its divisor; the divisor or 0; the blocks."""
    by = np.stack([factors, np.zeros_like(factors)] if divisors is None else [1 / divisors, divisors], axis=1)
    return np.concatenate([by.astype(np.float32).view(np.uint8), blocks.reshape(len(by), -1)], axis=1).reshape(-1)


def decode_scaled_nvfp4(w: NDArray[np.uint8], n_out: int) -> F32:
    """[n_out, n_in]: e2m1 times (e4m3 times the factor, or e4m3 divided by the divisor), each rounded to fp32."""
    rows = w.reshape(n_out, -1)
    factor, divisor = rows[:, :8].copy().view(np.float32).T[:, :, None]
    blocks = rows[:, 8:].reshape(n_out, -1, 36)
    scales = e4m3_values()[blocks[:, :, :4]].reshape(n_out, -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        by = np.where(divisor != 0, scales / divisor, scales * factor).astype(np.float32)
    codes = blocks[:, :, 4:].reshape(n_out, -1, 8)
    codes = np.concatenate([codes & 15, codes >> 4], axis=2)
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    values = np.where(codes < 8, 1, -1).astype(np.float32) * magnitudes[codes & 7]
    return (values * by[:, :, None]).reshape(n_out, -1)


def to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounded to nearest even; the bits."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)


def quantize_q8(x: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Rows rounded to blocks of 32: scale = max|x| / 127 in fp32, q = round half to even of x / scale in fp32."""
    blocks = x.reshape(len(x), -1, 32)
    scale = np.abs(blocks).max(axis=2) / np.float32(127)
    divisor = np.where(scale > 0, scale, np.float32(1))[:, :, None]
    rounded = np.where(scale[:, :, None] > 0, np.clip(np.rint(blocks / divisor), -127, 127), 0)
    return rounded.astype(np.int8).reshape(x.shape), scale


def rounded(x: F32) -> F32:
    """x as quantize_q8 rounds it: fp32 products of codes and scales."""
    q, scale = quantize_q8(x)
    return q.astype(np.float32) * np.repeat(scale, 32, axis=1)


def linear(w: NDArray[np.uint8], dtype: str, n_out: int, x: NDArray[np.float32], activations: str) -> tuple[F64, F64]:
    """x w^T, and the same with absolute values: the scale of the rounding errors. "int8" rounds the x of FP8 as a
    device does; the CPU keeps it."""
    weights = decode(w, dtype).reshape(n_out, -1).astype(np.float64)
    inputs: F64 = x.astype(np.float64)
    if activations == "int8" and dtype not in PLAIN_TYPES:
        q, scale = quantize_q8(x)
        inputs = q.astype(np.float64) * np.repeat(scale.astype(np.float64), 32, axis=1)
    return inputs @ weights.T, np.abs(inputs) @ np.abs(weights).T


def moved_code(w: NDArray[np.uint8], dtype: str, n_out: int, x: NDArray[np.float32]) -> F64:
    """(rows of x, n_out): how far an output moves at most, if one value of x is rounded to the code next to its own."""
    weights = np.abs(decode(w, dtype).reshape(n_out, -1, 32).astype(np.float64)).max(axis=2)
    step = quantize_q8(x)[1].astype(np.float64)
    return (step[:, None, :] * weights).max(axis=2)
