"""Norms, the gated activation and rope on a device: against fp64, and beside the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from lucebox import _engine
from lucebox.selftest import ops
from numpy.typing import NDArray
from reference import rms_norm as norm_reference
from reference import rope as rope_reference
from reference import swiglu as swiglu_reference
from tolerances import check

DIMS = (1, 7, 63, 64, 65, 127, 128, 129, 256, 896, 1024, 1037, 4096)  # 128 and 4: where a warp and a vector end

F32 = NDArray[np.float32]


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("rows", (5, 7))  # on sim short heads of 5 rows have a block each, of 7 rows a warp
@pytest.mark.parametrize("dim", DIMS)
def test_rms_norm(pack: _engine.gpu.Pack, dim: int, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = normal(rng, rows, 3, dim) * 10.0 ** rng.integers(-4, 4, (rows, 3, 1)).astype(np.float32)
    w = normal(rng, dim)
    got = ops.rms_norm(x, w, 1e-6, pack=pack)
    check("norm", got, norm_reference.rms_norm(x, w, 1e-6))
    check("norm", got, ops.rms_norm(x, w, 1e-6))


@pytest.mark.parametrize("dim", (24, 33, 256))
def test_rms_norm_reads_heads_at_a_stride(pack: _engine.gpu.Pack, dim: int, seed: int) -> None:
    """What lies between the heads is NaN and must not be read."""
    fused = np.full((4, 3, 2 * dim + 5), np.nan, np.float32)
    fused[:, :, :dim] = normal(np.random.default_rng(seed), 4, 3, dim)
    w = np.ones(dim, np.float32)
    check(
        "norm", ops.rms_norm(fused[:, :, :dim], w, 1e-6, pack=pack), norm_reference.rms_norm(fused[:, :, :dim], w, 1e-6)
    )


def test_norm_of_a_row_with_a_nan_is_nan_and_no_other(pack: _engine.gpu.Pack) -> None:
    x = np.ones((3, 2, 70), np.float32)
    x[1, 0, 69] = np.nan
    y = ops.rms_norm(x, np.ones(70, np.float32), 1e-6, pack=pack)
    assert np.array_equal(np.isnan(y), np.isnan(x).any(axis=2, keepdims=True) & np.ones(70, bool))


@pytest.mark.parametrize("rows", (2, 7))
@pytest.mark.parametrize("dim", DIMS)
def test_gated_rms_norm(pack: _engine.gpu.Pack, dim: int, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    o, z, w = normal(rng, rows, 3, dim) * 5, normal(rng, rows, 3, dim) * 5, normal(rng, dim)
    got = ops.gated_rms_norm(o, z, w, 1e-6, pack=pack)
    check("norm", got, norm_reference.gated_rms_norm(o, z, w, 1e-6))
    check("norm", got, ops.gated_rms_norm(o, z, w, 1e-6))


@pytest.mark.parametrize("dim", DIMS)
def test_swiglu(pack: _engine.gpu.Pack, dim: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    gate, up = normal(rng, 3, dim) * 10, normal(rng, 3, dim)
    got = ops.swiglu(gate, up, pack=pack)
    check("norm", got, swiglu_reference.swiglu(gate, up))
    check("norm", got, ops.swiglu(gate, up))


def test_swiglu_at_the_ends(pack: _engine.gpu.Pack) -> None:
    """Neither an overflow on the way nor a lost NaN."""
    gate = np.array([[np.nan, np.inf, 100, -100, 0, -1e30, 1e30]], np.float32)
    got = ops.swiglu(gate, np.ones_like(gate), pack=pack)[0]
    assert np.isnan(got[0]) and got[1] == np.inf and got[2] == 100 and got[4] == 0 and got[6] == np.float32(1e30)
    assert abs(got[3]) < 1e-30 and got[5] == 0


@pytest.mark.parametrize("pairs", ("halves", "adjacent"))
@pytest.mark.parametrize(("dim", "n_pairs"), ((2, 1), (8, 1), (64, 32), (256, 32), (128, 64), (80, 20), (25, 7)))
def test_rope(pack: _engine.gpu.Pack, pairs: str, dim: int, n_pairs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = normal(rng, 9, 3, dim)
    angle = rng.uniform(-9, 9, (9, n_pairs))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    got = ops.rope(x, cos, sin, pairs, pack=pack)
    unit = np.abs(rope_reference.rope(np.abs(x), np.ones_like(cos), np.zeros_like(sin), pairs)) + np.abs(
        rope_reference.rope(x, np.zeros_like(cos), np.ones_like(sin), pairs)
    )
    check("rope", got, rope_reference.rope(x, cos, sin, pairs), unit)
    check("rope", got, ops.rope(x, cos, sin, pairs), unit)
    assert np.array_equal(got[..., 2 * n_pairs :], x[..., 2 * n_pairs :])
