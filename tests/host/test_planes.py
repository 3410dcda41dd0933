"""The layout of weights on a device: exact both ways, readable in whole sectors, no larger than the file's."""

from __future__ import annotations

import numpy as np
import pytest
from lucebox import _engine
from lucebox.errors import InvalidRequestError, UnsupportedError
from reference.linear import block_size, random_weights

ops = _engine.ops
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K")


def shapes(dtype: str) -> list[tuple[int, int]]:
    values = block_size(dtype)[0]
    return [(n_out, blocks * values) for n_out, blocks in ((1, 1), (3, 5), (33, 8), (7, 67))]


@pytest.mark.parametrize("dtype", TYPES)
def test_round_trip(dtype: str) -> None:
    for n_out, n_in in shapes(dtype):
        blocks = random_weights(dtype, n_out * n_in, np.random.default_rng(n_in))
        planes = ops.to_planes(blocks, dtype, n_out, n_in)
        assert np.array_equal(ops.from_planes(planes, dtype, n_out, n_in), blocks)


@pytest.mark.parametrize("dtype", TYPES)
def test_planes_are_aligned_apart_and_no_larger_than_the_blocks(dtype: str) -> None:
    for n_out, n_in in shapes(dtype):
        planes, total = ops.plane_layout(dtype, n_out, n_in)
        blocks = len(random_weights(dtype, n_out * n_in, np.random.default_rng(0)))
        end = 0
        for offset, row_bytes in planes:
            assert offset % 256 == 0 and offset >= end
            end = offset + n_out * row_bytes
        assert total >= end and total % 256 == 0
        padding = 16 * n_out if block_size(dtype)[0] == 1 else 0  # of rows of plain numbers
        assert blocks <= total <= blocks + padding + 256 * len(planes)


def test_alignment_is_filled_with_zeros() -> None:
    planes = ops.to_planes(np.full(2 * 3 * 2, 0xFF, np.uint8), "BF16", 2, 3)
    assert len(planes) == 256 and planes[:6].all() and not planes[6:16].any() and not planes[22:].any()


def test_what_has_no_layout_is_named() -> None:
    with pytest.raises(UnsupportedError, match="IQ4_XS weights have no device layout"):
        ops.plane_layout("IQ4_XS", 1, 256)
    with pytest.raises(InvalidRequestError, match=r"Q6_K rows are multiples of 256 values, got \[4, 896\]"):
        ops.plane_layout("Q6_K", 4, 896)
    with pytest.raises(InvalidRequestError, match="blocks must be 34 bytes, got 33"):
        ops.to_planes(np.zeros(33, np.uint8), "Q8_0", 1, 32)
