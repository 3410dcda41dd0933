"""Norms against fp64 on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from lucebox.errors import InvalidRequestError
from lucebox.selftest import ops
from reference import rms_norm as reference
from tolerances import check

DIMS = (1, 7, 16, 63, 64, 65, 128, 256, 1024, 1037)


@pytest.mark.parametrize("dim", DIMS)
def test_rms_norm(isa: str, dim: int) -> None:
    rng = np.random.default_rng(dim)
    x = rng.normal(size=(5, 3, dim)).astype(np.float32) * 10.0 ** rng.integers(-4, 4, (5, 3, 1)).astype(np.float32)
    w = rng.normal(size=dim).astype(np.float32)
    check("norm", ops.rms_norm(x, w, 1e-6, isa=isa), reference.rms_norm(x, w, 1e-6))


@pytest.mark.parametrize("dim", (24, 256))
def test_rms_norm_reads_heads_at_a_stride(isa: str, dim: int) -> None:
    """The query half of [query | gate] heads; the other half is NaN and must not be read."""
    rng = np.random.default_rng(1)
    fused = np.full((4, 3, 2 * dim + 5), np.nan, np.float32)
    fused[:, :, :dim] = rng.normal(size=(4, 3, dim))
    w = rng.normal(size=dim).astype(np.float32)
    got = ops.rms_norm(fused[:, :, :dim], w, 1e-6, isa=isa)
    check("norm", got, reference.rms_norm(fused[:, :, :dim], w, 1e-6))


def test_eps_counts(isa: str) -> None:
    x = np.full((2, 1, 64), 1e-4, np.float32)
    x[1] = 0
    w = np.ones(64, np.float32)
    check("norm", ops.rms_norm(x, w, 1e-6, isa=isa), reference.rms_norm(x, w, 1e-6))


@pytest.mark.parametrize("dim", DIMS)
def test_gated_rms_norm(isa: str, dim: int) -> None:
    rng = np.random.default_rng(dim)
    o, z = rng.normal(size=(2, 3, 4, dim)).astype(np.float32) * np.float32(5)
    w = rng.normal(size=dim).astype(np.float32)
    check("norm", ops.gated_rms_norm(o, z, w, 1e-6, isa=isa), reference.gated_rms_norm(o, z, w, 1e-6))


def test_threads_change_no_bit(isa: str) -> None:
    x = np.random.default_rng(0).normal(size=(130, 1, 1024)).astype(np.float32)
    w = np.ones(1024, np.float32)
    assert np.array_equal(ops.rms_norm(x, w, 1e-6, isa=isa, threads=1), ops.rms_norm(x, w, 1e-6, isa=isa, threads=2))


def test_wrong_shape_is_named() -> None:
    with pytest.raises(InvalidRequestError, match=r"w must have shape \[8\], got \[7\]"):
        ops.rms_norm(np.zeros((1, 1, 8), np.float32), np.zeros(7, np.float32), 1e-6)
