"""Block decoding: the same bits as gguf-py, on random blocks that are new each run and on the edges."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from lucebox import _kernels
from lucebox.errors import InvalidRequestError
from numpy.typing import NDArray
from reference.linear import (
    BLOCK_TYPES,
    CODEBOOK_TYPES,
    FP8,
    PLAIN_TYPES,
    SCALES_AT,
    block_size,
    decode,
    put_iq1_m_scale,
    random_weights,
)

F16_EDGES = np.array([0, -0.0, 6e-8, -6e-8, 6.0976e-05, 6.1035e-05, 1, -1, 65504, -65504], np.float16)


def same_bits(got: NDArray[np.float32], want: NDArray[np.float32]) -> bool:
    return bool(np.array_equal(got.view(np.uint32), np.ascontiguousarray(want, np.float32).view(np.uint32)))


def ours(w: NDArray[np.uint8], dtype: str) -> NDArray[np.float32]:
    values, n_bytes = block_size(dtype)
    y: NDArray[np.float32] = _kernels.weights.dequantize(w, dtype, w.size // n_bytes * values)
    return y


@pytest.mark.parametrize("dtype", (*BLOCK_TYPES, *CODEBOOK_TYPES, *PLAIN_TYPES, FP8))
def test_random_bytes(dtype: str, seed: int) -> None:
    w = random_weights(dtype, 512 * 256, np.random.default_rng(seed))
    assert same_bits(ours(w, dtype), decode(w, dtype))


@pytest.mark.parametrize("dtype", BLOCK_TYPES + CODEBOOK_TYPES)
def test_edges(dtype: str) -> None:
    """Zero, subnormal and extreme scales, with codes all zero, all one and random."""
    rng = np.random.default_rng(0)
    n_bytes = block_size(dtype)[1]
    rows = []
    for fill in (0, 255, None):
        for first in F16_EDGES:
            for second in F16_EDGES:
                block = rng.integers(0, 256, n_bytes, dtype=np.uint8)
                if fill is not None:
                    block[:] = fill
                for at, scale in zip(SCALES_AT[dtype], (first, second), strict=False):
                    block[at : at + 2] = np.frombuffer(scale.tobytes(), np.uint8)
                if dtype == "MXFP4":
                    block[0] = rng.choice([0, 1, 2, 127, 254])
                if dtype == "IQ1_M":
                    put_iq1_m_scale(block[None], np.array([first]))
                rows.append(block)
    blocks = np.stack(rows)
    with np.errstate(over="ignore"):  # 2^126 times 12 is an infinity on both sides
        want = dequantize(blocks, gguf.GGMLQuantizationType[dtype]).reshape(-1)
    assert same_bits(ours(blocks.reshape(-1), dtype), want)


def test_every_scale_of_nvfp4() -> None:
    """Unsigned e4m3: its NaN is 0, the sign bit does not count."""
    blocks = np.random.default_rng(0).integers(0, 256, (64, 36), dtype=np.uint8)
    blocks[:, :4] = np.arange(256).reshape(64, 4)
    assert same_bits(ours(blocks.reshape(-1), "NVFP4"), decode(blocks.reshape(-1), "NVFP4"))


def test_every_f16() -> None:
    """All finite halves and infinities exactly; NaN stays NaN."""
    halves = np.arange(65536, dtype=np.uint16)
    got = ours(halves.view(np.uint8), "F16")
    want = halves.view(np.float16).astype(np.float32)
    is_nan = np.isnan(want)
    assert np.array_equal(np.isnan(got), is_nan)
    assert same_bits(got[~is_nan], want[~is_nan])


@pytest.mark.parametrize(("size", "n"), [(18, 64), (17, 32), (36, 32)])
def test_wrong_size_is_refused(size: int, n: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"got {size}"):
        _kernels.weights.dequantize(np.zeros(size, np.uint8), "Q4_0", n)


def test_part_of_a_block_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="multiples of 32 values, got 33"):
        _kernels.weights.dequantize(np.zeros(36, np.uint8), "Q4_0", 33)
