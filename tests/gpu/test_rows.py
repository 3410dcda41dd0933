"""Softmax, the largest value, conversions and embedding on a device."""

from __future__ import annotations

import numpy as np
import pytest
from lucebox import _engine
from numpy.typing import NDArray
from reference import linear as linear_reference
from reference import rows as reference
from tolerances import check

gpu_ops, cpu = _engine.gpu_ops, _engine.ops
DIMS = (1, 31, 32, 33, 1000, 1024, 4095, 8193, 32000)
GRID = pytest.mark.parametrize("grid", [False, True], ids=["block", "grid"])


@GRID
@pytest.mark.parametrize("dim", DIMS)
def test_softmax(pack: _engine.gpu.Pack, dim: int, grid: bool, seed: int) -> None:
    x = (np.random.default_rng(seed).normal(size=(3, dim)) * 5).astype(np.float32)
    x[1] += 1000
    got = gpu_ops.softmax(pack, x, 0.5, grid)
    check("softmax", got, reference.softmax(x, 0.5))
    check("softmax", got, cpu.softmax(x, 0.5))


@GRID
def test_softmax_of_masked_and_bad_rows(pack: _engine.gpu.Pack, grid: bool) -> None:
    dim = 9000
    x = np.full((5, dim), -np.inf, np.float32)
    x[0, 8999] = 3  # one value seen: the other blocks have none
    x[1, :10] = 1
    x[1, 5] = np.nan
    x[2, 17] = np.inf
    x[4] = 0
    got = gpu_ops.softmax(pack, x, 1.0, grid)
    assert got[0, 8999] == 1 and not got[0, :8999].any()
    assert np.isnan(got[1:4]).all()
    assert np.array_equal(np.isnan(got), np.isnan(cpu.softmax(x, 1.0)))
    check("softmax", got[4], np.full(dim, 1 / dim))


@GRID
@pytest.mark.parametrize("dim", DIMS)
def test_arg_max(pack: _engine.gpu.Pack, dim: int, grid: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(-50, 50, (4, dim)).astype(np.float32)  # many ties: the lowest index wins
    x[2] = -np.abs(x[2]) - 1
    x[3] = np.where(rng.random(dim) < 0.5, np.float32(-0.0), np.float32(0.0))
    got = gpu_ops.arg_max(pack, x, grid)
    assert np.array_equal(got, reference.arg_max(x)) and np.array_equal(got, cpu.arg_max(x))
    assert got[3] == 0


@GRID
def test_arg_max_passes_over_nan(pack: _engine.gpu.Pack, grid: bool) -> None:
    x = np.full((3, 5000), np.nan, np.float32)
    x[0, 4000] = -np.inf
    x[1, 4999] = np.inf
    got = gpu_ops.arg_max(pack, x, grid)
    assert got.tolist() == [4000, 4999, 0] == cpu.arg_max(x).tolist()


@pytest.mark.parametrize("from_", linear_reference.PLAIN_TYPES)
@pytest.mark.parametrize("to", linear_reference.PLAIN_TYPES)
def test_convert(pack: _engine.gpu.Pack, from_: str, to: str, seed: int) -> None:
    """Every 16-bit pattern, and fp32 values of all sizes; NaN need not keep its bits."""
    if from_ == "F32":
        bits = np.random.default_rng(seed).integers(0, 1 << 32, 100003, dtype=np.uint64).astype(np.uint32)
        bits[:4096] = (bits[:4096] & 0x80FFFFFF) | 0x33000000  # around the f16 subnormals
        x = bits.view(np.uint8)
    else:
        x = np.arange(1 << 16, dtype=np.uint16).view(np.uint8)
    got, want = gpu_ops.convert(pack, x, from_, to), cpu.convert(x, from_, to)
    a, b = linear_reference.decode(got, to), linear_reference.decode(want, to)
    assert np.array_equal(np.isnan(a), np.isnan(b))
    width = np.uint32 if to == "F32" else np.uint16
    assert np.array_equal(got.view(width)[~np.isnan(a)], want.view(width)[~np.isnan(b)])


@pytest.mark.parametrize("count", [1, 3, 4, 5, 1023])
def test_convert_odd_counts(pack: _engine.gpu.Pack, count: int) -> None:
    x = np.arange(count, dtype=np.float32)
    got: NDArray[np.uint8] = gpu_ops.convert(pack, x.view(np.uint8), "F32", "F16")
    assert np.array_equal(got.view(np.float16), x.astype(np.float16))


@pytest.mark.parametrize("dtype", linear_reference.PLAIN_TYPES + linear_reference.BLOCK_TYPES)
@pytest.mark.parametrize("blocks", [1, 3])
def test_embed(pack: _engine.gpu.Pack, dtype: str, blocks: int, seed: int) -> None:
    values = linear_reference.block_size(dtype)[0]
    dim = blocks * (values if values > 1 else 37)
    table = linear_reference.random_weights(dtype, 11 * dim, np.random.default_rng(seed))
    ids = np.array([10, 0, 3, 3], np.int32)
    got = gpu_ops.embed(pack, table, dtype, dim, ids)
    assert np.array_equal(got, linear_reference.decode(table, dtype).reshape(11, dim)[ids])
    assert np.array_equal(got, cpu.embed(table, dtype, dim, ids))


def test_embed_of_every_exponent(pack: _engine.gpu.Pack) -> None:
    """The scales of MXFP4, the two subnormal ones and 2^127 among them."""
    table = np.full((256, 17), 0x71, np.uint8)
    table[:, 0] = np.arange(256)
    ids = np.arange(256, dtype=np.int32)
    got = gpu_ops.embed(pack, table.reshape(-1), "MXFP4", 32, ids)
    assert np.array_equal(got, cpu.embed(table.reshape(-1), "MXFP4", 32, ids))
