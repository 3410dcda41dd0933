"""The layout of weights on a device: exact both ways, readable in whole sectors, as large as the file's."""

from __future__ import annotations

import numpy as np
import pytest
from lucebox import _kernels
from lucebox.errors import InvalidRequestError
from reference.linear import (
    BLOCK_TYPES,
    CODEBOOK_TYPES,
    FP8,
    PLAIN_TYPES,
    block_size,
    decode,
    random_weights,
    scaled_nvfp4,
    to_bf16,
)

weights = _kernels.weights
TYPES = (*PLAIN_TYPES, *BLOCK_TYPES, FP8)


def shapes(dtype: str) -> list[tuple[int, int]]:
    values = block_size(dtype)[0]
    return [(n_out, blocks * values) for n_out, blocks in ((1, 1), (3, 5), (33, 8), (7, 67))]


@pytest.mark.parametrize("dtype", TYPES)
def test_round_trip(dtype: str) -> None:
    for n_out, n_in in shapes(dtype):
        blocks = random_weights(dtype, n_out * n_in, np.random.default_rng(n_in))
        planes = weights.to_planes(blocks, dtype, n_out, n_in)
        assert np.array_equal(weights.from_planes(planes, dtype, n_out, n_in), blocks)


@pytest.mark.parametrize("dtype", TYPES)
def test_tasks_of_some_rows_make_the_same_planes(dtype: str) -> None:
    n_out, n_in = 11, 3 * block_size(dtype)[0]
    blocks = random_weights(dtype, n_out * n_in, np.random.default_rng(1))
    whole = weights.to_planes(blocks, dtype, n_out, n_in)
    for task_rows in (1, 4, 11):
        assert np.array_equal(weights.to_planes(blocks, dtype, n_out, n_in, task_rows), whole)


@pytest.mark.parametrize("dtype", TYPES)
def test_planes_are_aligned_apart_and_hardly_larger_than_the_blocks(dtype: str) -> None:
    for n_out, n_in in shapes(dtype):
        planes, total = weights.plane_layout(dtype, n_out, n_in)
        blocks = len(random_weights(dtype, n_out * n_in, np.random.default_rng(0)))
        end = 0
        for offset, row_bytes in planes:
            assert offset % 256 == 0 and offset >= end
            end = offset + n_out * row_bytes
        assert total >= end and total % 256 == 0
        padding = 16 * n_out if block_size(dtype)[0] == 1 else 0  # of rows of plain numbers
        more = blocks // 110 * 2 if dtype == "Q3_K" else 0  # d is there twice
        more += 8 * n_out if dtype == "NVFP4" else 0  # the tensor's scale, in each row
        assert blocks <= total <= blocks + more + padding + 256 * len(planes)


@pytest.mark.parametrize("dtype", CODEBOOK_TYPES)
def test_types_without_planes_become_bf16(dtype: str) -> None:
    """Rounded to nearest even, in tasks of any rows; there is no way back."""
    n_out, n_in = 5, 3 * block_size(dtype)[0]
    blocks = random_weights(dtype, n_out * n_in, np.random.default_rng(2))
    values = decode(blocks, dtype).reshape(n_out, n_in)
    rounded = to_bf16(values)
    for task_rows in (1, 2, 5):
        planes = weights.to_planes(blocks, dtype, n_out, n_in, task_rows)
        assert np.array_equal(planes, weights.to_planes(rounded.reshape(-1).view(np.uint8), "BF16", n_out, n_in))
    with pytest.raises(InvalidRequestError, match="no planes of its own"):
        weights.from_planes(planes, dtype, n_out, n_in)


def test_scaled_nvfp4_round_trip() -> None:
    """A device holds both forms as NVFP4; blocks alone have the factor 1."""
    rng = np.random.default_rng(3)
    n_out, n_in = 7, 320
    blocks = random_weights("NVFP4", n_out * n_in, rng)
    rows = scaled_nvfp4(blocks, rng.uniform(size=n_out).astype(np.float32))
    for task_rows in (0, 2):
        planes = weights.to_planes(rows, "NVFP4_SCALED", n_out, n_in, task_rows)
        assert np.array_equal(weights.from_planes(planes, "NVFP4_SCALED", n_out, n_in), rows)
        assert np.array_equal(weights.from_planes(planes, "NVFP4", n_out, n_in), blocks)
    ones = weights.to_planes(scaled_nvfp4(blocks, np.ones(n_out, np.float32)), "NVFP4_SCALED", n_out, n_in)
    assert np.array_equal(weights.to_planes(blocks, "NVFP4", n_out, n_in), ones)


def test_scales_of_nvfp4_lose_sign_and_nan() -> None:
    """Which do not count in the file either."""
    blocks = np.random.default_rng(4).integers(0, 256, (64, 36), dtype=np.uint8)
    blocks[:, :4] = np.arange(256).reshape(64, 4)
    planes = weights.to_planes(blocks.reshape(-1), "NVFP4", 64, 64)
    kept = weights.from_planes(planes, "NVFP4", 64, 64)
    assert np.array_equal(decode(kept, "NVFP4"), decode(blocks.reshape(-1), "NVFP4"))
    assert np.array_equal(weights.to_planes(kept, "NVFP4", 64, 64), planes)


def test_alignment_is_filled_with_zeros() -> None:
    planes = weights.to_planes(np.full(2 * 3 * 2, 0xFF, np.uint8), "BF16", 2, 3)
    assert len(planes) == 256 and planes[:6].all() and not planes[6:16].any() and not planes[22:].any()


def test_what_is_no_whole_block_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match=r"Q6_K rows are multiples of 256 values, got \[4, 896\]"):
        weights.plane_layout("Q6_K", 4, 896)
    with pytest.raises(InvalidRequestError, match="blocks must be 34 bytes, got 33"):
        weights.to_planes(np.zeros(33, np.uint8), "Q8_0", 1, 32)
