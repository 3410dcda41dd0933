"""The gated activation against fp64, from the middle of the range to where e^x leaves it."""

from __future__ import annotations

import numpy as np
import op_cases
import pytest
from lucebox.selftest import ops, shapes
from reference.swiglu import swiglu
from tolerances import check


@pytest.mark.parametrize("shape", shapes.SWIGLUS)
def test_swiglu(isa: str, shape: tuple[int, int]) -> None:
    op_cases.swiglu(np.random.default_rng(shape), *shape, isa=isa)


def test_exponential_over_the_whole_range(isa: str) -> None:
    gate = np.linspace(-86, 86, 20011, dtype=np.float32)[None]
    check("norm", ops.swiglu(gate, np.ones_like(gate), isa=isa), swiglu(gate, np.ones_like(gate)))


def test_ends_of_the_range(isa: str) -> None:
    gate = np.array([[-1000, -200, 200, 1000, 0, -0.0, 3e38, np.nan, np.inf]], np.float32)
    got = ops.swiglu(gate, np.ones_like(gate), isa=isa)[0]
    assert np.abs(got[:2]).max() < 1e-30
    assert got[2:7].tolist() == gate[0, 2:7].tolist()
    assert np.isnan(got[7]) and got[8] == np.inf


def test_threads_change_no_bit(isa: str) -> None:
    gate, up = np.random.default_rng(0).normal(size=(2, 65, 1000)).astype(np.float32)
    assert np.array_equal(ops.swiglu(gate, up, isa=isa, threads=1), ops.swiglu(gate, up, isa=isa, threads=2))
