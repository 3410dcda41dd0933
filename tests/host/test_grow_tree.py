"""The tree of a draft on the CPU, against a heap."""

from __future__ import annotations

import numpy as np
import pytest
from grow_tree_data import SCORES, SHAPES, candidates, check_tree
from lucebox.selftest import ops


@pytest.mark.parametrize("seed", (0, 1))
@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("shape", SHAPES)
def test_grow_tree(shape: tuple[int, ...], scores: str, seed: int) -> None:
    check_tree(np.random.default_rng(seed), scores, shape)


def test_the_first_rows_are_the_tree_of_fewer_rows() -> None:
    """So a verify may take any number of rows before the tree is known."""
    ids, logprobs = candidates(np.random.default_rng(0), "ties", 1, 15, 8)
    root, n_past = np.array([3], np.int32), np.array([70], np.int32)
    whole = ops.grow_tree(ids, logprobs, root, n_past, 64, 64)
    for rows in (1, 2, 23, 63):
        part = ops.grow_tree(ids, logprobs, root, n_past, rows, rows)
        for name in ("tokens", "parents", "depths", "scores", "ancestors"):
            assert np.array_equal(part[name], whole[name][:, :rows]), name
