"""The row before each row, over appends of chains and trees of which paths are accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lucebox.selftest import ops
from previous_row_appends import appends


def test_appends(isa: str) -> None:
    for dim in (1, 31, 100):
        appends(np.random.default_rng(dim), dim, isa=isa)


@pytest.mark.parametrize("n", (0, 3))
def test_fold_alone(n: int) -> None:
    """An append of no rows moves the last accepted row into the history and changes nothing else."""
    rng = np.random.default_rng(n)
    history, pending = rng.normal(size=5).astype(np.float32), rng.normal(size=(64, 5)).astype(np.float32)
    path = np.array([0, 4, 9][:n], np.int32)
    on: dict[str, Any] = {}
    _, after, still = ops.previous_row(np.zeros((0, 5), np.float32), history, pending, path, **on)
    assert np.array_equal(after, pending[9] if n else history) and np.array_equal(still, pending)
