"""Norms against fp64 on every instruction set."""

from __future__ import annotations

import numpy as np
import op_cases
import pytest
from lucebox.errors import InvalidRequestError
from lucebox.selftest import ops, shapes
from reference import rms_norm as reference
from tolerances import check


@pytest.mark.parametrize("shape", shapes.NORMS)
def test_rms_norm(isa: str, shape: tuple[int, int, int]) -> None:
    op_cases.rms_norm(np.random.default_rng(shape), *shape, isa=isa)


@pytest.mark.parametrize("dim", (24, 33, 256))
def test_rms_norm_reads_heads_at_a_stride(isa: str, dim: int) -> None:
    op_cases.norm_of_strided_heads(np.random.default_rng(1), dim, isa=isa)


def test_eps_counts(isa: str) -> None:
    x = np.full((2, 1, 64), 1e-4, np.float32)
    x[1] = 0
    w = np.ones(64, np.float32)
    check("norm", ops.rms_norm(x, w, 1e-6, isa=isa), reference.rms_norm(x, w, 1e-6))


@pytest.mark.parametrize("shape", shapes.NORMS)
def test_gated_rms_norm(isa: str, shape: tuple[int, int, int]) -> None:
    op_cases.gated_rms_norm(np.random.default_rng(shape), *shape, isa=isa)


def test_threads_change_no_bit(isa: str) -> None:
    x = np.random.default_rng(0).normal(size=(130, 1, 1024)).astype(np.float32)
    w = np.ones(1024, np.float32)
    assert np.array_equal(ops.rms_norm(x, w, 1e-6, isa=isa, threads=1), ops.rms_norm(x, w, 1e-6, isa=isa, threads=2))


def test_wrong_shape_is_named() -> None:
    with pytest.raises(InvalidRequestError, match=r"w must have shape \[8\], got \[7\]"):
        ops.rms_norm(np.zeros((1, 1, 8), np.float32), np.zeros(7, np.float32), 1e-6)
