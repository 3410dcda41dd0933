"""Ops that also quantise their output give the same bits as quantising it afterwards."""

from __future__ import annotations

import numpy as np
import pytest
from lucebox import _engine
from lucebox.errors import InvalidRequestError
from lucebox.selftest import ops
from numpy.typing import NDArray

F32 = NDArray[np.float32]
BITS = pytest.mark.parametrize("bits", (8, 16))


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.normal(size=shape).astype(np.float32)


def check(pack: _engine.gpu.Pack, result: tuple[F32, NDArray[np.uint8]], plain: F32, bits: int) -> None:
    y, rounded = result
    assert np.array_equal(y, plain, equal_nan=True), "rounding changes nothing else"
    assert np.array_equal(rounded, ops.round_rows(plain.reshape(len(plain), -1), bits, pack=pack))


@BITS
@pytest.mark.parametrize(("rows", "heads", "dim"), ((1, 1, 32), (3, 1, 1024), (1, 1, 5120), (2, 5, 96), (2, 3, 128)))
def test_norms(pack: _engine.gpu.Pack, rows: int, heads: int, dim: int, bits: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, z, w = normal(rng, rows, heads, dim), normal(rng, rows, heads, dim), normal(rng, dim)
    check(pack, ops.rms_norm_rounded(x, w, 1e-6, bits, pack=pack), ops.rms_norm(x, w, 1e-6, pack=pack), bits)
    gated = ops.gated_rms_norm_rounded(x, z, w, 1e-6, bits, pack=pack)
    check(pack, gated, ops.gated_rms_norm(x, z, w, 1e-6, pack=pack), bits)


@BITS
@pytest.mark.parametrize(("rows", "dim"), ((1, 32), (1, 3584), (3, 96), (2, 1056)))
def test_swiglu(pack: _engine.gpu.Pack, rows: int, dim: int, bits: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    gate, up = 5 * normal(rng, rows, dim), normal(rng, rows, dim)
    gate[0, :32] = 0
    gate[-1, -1] = np.nan
    rounded = ops.swiglu_rounded(gate, up, bits, pack=pack)
    check(pack, rounded, ops.swiglu(gate, up, pack=pack), bits)


def test_broken_blocks_are_refused(pack: _engine.gpu.Pack) -> None:
    x = np.ones((1, 2, 48), np.float32)
    with pytest.raises(InvalidRequestError, match=r"\[rms_norm\] \[1, 2, 48\]: only aligned rows of whole blocks"):
        ops.rms_norm_rounded(x, x[0, 0], 1e-6, 8, pack=pack)
