"""Rotary embedding against fp64: both pairings and partial rotation."""

from __future__ import annotations

import numpy as np
import op_cases
import pytest
from lucebox.selftest import ops, shapes


@pytest.mark.parametrize("pairs", ("halves", "adjacent"))
@pytest.mark.parametrize("shape", shapes.ROPES)
def test_rope(isa: str, pairs: str, shape: tuple[int, int, int, int]) -> None:
    op_cases.rope(np.random.default_rng(shape), *shape, pairs, isa=isa)


@pytest.mark.parametrize("pairs", ("halves", "adjacent"))
def test_threads_change_no_bit(isa: str, pairs: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(9, 3, 128)).astype(np.float32)
    cos, sin = rng.normal(size=(2, 9, 64)).astype(np.float32)
    assert np.array_equal(ops.rope(x, cos, sin, pairs, isa=isa), ops.rope(x, cos, sin, pairs, isa=isa, threads=2))
