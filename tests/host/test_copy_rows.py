"""Rows into columns of a wider matrix; what lies between stays as it is (the binding checks it)."""

from __future__ import annotations

import numpy as np
import pytest
from lucebox.selftest import ops


@pytest.mark.parametrize(("rows", "dim", "column", "width"), ((1, 1, 0, 1), (3, 7, 5, 13), (70, 64, 64, 192)))
def test_copy_rows(rows: int, dim: int, column: int, width: int, isa: str) -> None:
    rng = np.random.default_rng(rows)
    x, y = rng.normal(size=(rows, dim)).astype(np.float32), rng.normal(size=(rows, width)).astype(np.float32)
    got = ops.copy_rows(x, y, column, isa=isa)
    y[:, column : column + dim] = x
    assert np.array_equal(got, y)


@pytest.mark.parametrize(("rows", "dim", "y_rows", "first"), ((1, 5, 4, 7), (3, 8, 4, 2), (4, 16, 4, 9)))
def test_copies_into_a_ring(rows: int, dim: int, y_rows: int, first: int, isa: str) -> None:
    rng = np.random.default_rng(rows)
    x, y = rng.normal(size=(rows, dim)).astype(np.float32), rng.normal(size=(y_rows, dim + 3)).astype(np.float32)
    got = ops.copy_rows(x, y, 2, first, isa=isa)
    y[(first + np.arange(rows)) % y_rows, 2 : 2 + dim] = x
    assert np.array_equal(got, y)
