"""Norms, the gated activation and rope on a device, compared with fp64 and with the CPU."""

from __future__ import annotations

import numpy as np
import op_cases
import pytest
from lucebox import _engine
from lucebox.selftest import ops, shapes
from numpy.typing import NDArray

DIMS = (1, 7, 63, 64, 65, 127, 128, 129, 256, 896, 1024, 1037, 4096)  # 128 and 4: where a warp and a vector end

F32 = NDArray[np.float32]


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("shape", shapes.NORMS)
def test_rms_norm(pack: _engine.gpu.Pack, shape: tuple[int, int, int], seed: int) -> None:
    op_cases.rms_norm(np.random.default_rng(seed), *shape, pack=pack)


@pytest.mark.parametrize("dim", (24, 33, 256))
def test_rms_norm_reads_heads_at_a_stride(pack: _engine.gpu.Pack, dim: int, seed: int) -> None:
    op_cases.norm_of_strided_heads(np.random.default_rng(seed), dim, pack=pack)


def test_norm_of_a_row_with_a_nan_is_nan_and_no_other(pack: _engine.gpu.Pack) -> None:
    x = np.ones((3, 2, 70), np.float32)
    x[1, 0, 69] = np.nan
    y = ops.rms_norm(x, np.ones(70, np.float32), 1e-6, pack=pack)
    assert np.array_equal(np.isnan(y), np.isnan(x).any(axis=2, keepdims=True) & np.ones(70, bool))


@pytest.mark.parametrize("shape", shapes.NORMS)
def test_gated_rms_norm(pack: _engine.gpu.Pack, shape: tuple[int, int, int], seed: int) -> None:
    op_cases.gated_rms_norm(np.random.default_rng(seed), *shape, pack=pack)


@pytest.mark.parametrize("shape", shapes.SWIGLUS)
def test_swiglu(pack: _engine.gpu.Pack, shape: tuple[int, int], seed: int) -> None:
    op_cases.swiglu(np.random.default_rng(seed), *shape, pack=pack)


def test_swiglu_at_the_ends(pack: _engine.gpu.Pack) -> None:
    """Intermediate values do not overflow, and NaN propagates."""
    gate = np.array([[np.nan, np.inf, 100, -100, 0, -1e30, 1e30]], np.float32)
    got = ops.swiglu(gate, np.ones_like(gate), pack=pack)[0]
    assert np.isnan(got[0]) and got[1] == np.inf and got[2] == 100 and got[4] == 0 and got[6] == np.float32(1e30)
    assert abs(got[3]) < 1e-30 and got[5] == 0


@pytest.mark.parametrize("pairs", ("halves", "adjacent"))
@pytest.mark.parametrize("shape", shapes.ROPES)
def test_rope(pack: _engine.gpu.Pack, pairs: str, shape: tuple[int, int, int, int], seed: int) -> None:
    op_cases.rope(np.random.default_rng(seed), *shape, pairs, pack=pack)
