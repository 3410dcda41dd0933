"""Copies rows into columns of a wider matrix; the other columns stay unchanged (the binding checks it)."""

from __future__ import annotations

import numpy as np
import op_cases
import pytest
from lucebox.selftest import shapes


@pytest.mark.parametrize("shape", shapes.COPIES)
def test_copy_rows(shape: tuple[int, ...], isa: str) -> None:
    op_cases.copy_rows(np.random.default_rng(shape), *shape, isa=isa)


@pytest.mark.parametrize("shape", shapes.RINGS)
def test_copies_into_a_ring(shape: tuple[int, ...], isa: str) -> None:
    op_cases.copy_into_ring(np.random.default_rng(shape), *shape, isa=isa)
