"""Runs appends of a sequence through PreviousRow, on the CPU or a device, and compares with the whole history."""

from __future__ import annotations

from typing import Any

import numpy as np
from lucebox.selftest import ops
from reference.previous_row import Sequence
from tree_data import path_to, random_tree

CHAIN_ROWS = (1, 2, 63, 64, 65, 128, 129, 200)


def appends(rng: np.random.Generator, dim: int, **on: Any) -> None:
    """Chains that keep a prefix ending in the last chunk, and trees that keep a path; some appends keep nothing."""
    sequence = Sequence(dim)
    history, pending = np.zeros(dim, np.float32), np.full((64, dim), np.nan, np.float32)
    accepted = None  # nothing came before
    for rows in (*CHAIN_ROWS, *rng.permutation(CHAIN_ROWS), 1, 22, 64):
        is_tree = rows <= 64 and rng.integers(0, 2) == 1
        parent = random_tree(rows, rng)[0] if is_tree else None
        x = rng.normal(size=(rows, dim)).astype(np.float32)
        y, history, pending = ops.previous_row(x, history, pending, accepted, parent, **on)
        assert np.array_equal(y, sequence.previous(x, parent))
        last = (rows - 1) // 64 * 64
        if parent is not None:
            accepted = path_to(parent, int(rng.integers(0, rows)))
        else:
            accepted = np.arange(rng.integers(0, rows - last + 1), dtype=np.int32)
        sequence.commit(x[:last])
        assert np.array_equal(history, sequence.rows[-1])
        sequence.commit(x[last:][accepted])
