"""Drafting ops on a device, compared with fp64 and with the CPU."""

from __future__ import annotations

import numpy as np
import op_cases
import pytest
from grow_tree_data import SCORES, SHAPES, check_tree
from lucebox import _engine
from lucebox.selftest import ops, shapes
from previous_row_appends import appends


@pytest.mark.parametrize("shape", shapes.COPIES)
def test_copy_rows(pack: _engine.gpu.Pack, shape: tuple[int, ...], seed: int) -> None:
    op_cases.copy_rows(np.random.default_rng(seed), *shape, pack=pack)


@pytest.mark.parametrize("shape", shapes.RINGS)
def test_copies_into_a_ring(pack: _engine.gpu.Pack, shape: tuple[int, ...], seed: int) -> None:
    op_cases.copy_into_ring(np.random.default_rng(seed), *shape, pack=pack)


@pytest.mark.parametrize("dim", (1, 31, 32, 100))
def test_previous_row(pack: _engine.gpu.Pack, dim: int, seed: int) -> None:
    appends(np.random.default_rng(seed), dim, pack=pack)


@pytest.mark.parametrize("n", (0, 3))
def test_previous_row_folds_alone(pack: _engine.gpu.Pack, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    history, pending = rng.normal(size=40).astype(np.float32), rng.normal(size=(64, 40)).astype(np.float32)
    _, after, still = ops.previous_row(
        np.zeros((0, 40), np.float32), history, pending, np.array([0, 4, 9][:n], np.int32), pack=pack
    )
    assert np.array_equal(after, pending[9] if n else history) and np.array_equal(still, pending)


@pytest.mark.parametrize("adds", (False, True))
@pytest.mark.parametrize("shape", shapes.BLOCK_CONVS)
def test_block_conv(pack: _engine.gpu.Pack, shape: tuple[int, int, int, int], adds: bool, seed: int) -> None:
    op_cases.block_conv(np.random.default_rng(seed), *shape, adds, pack=pack)


@pytest.mark.parametrize("dtype", ("F32", "F16", "BF16", "Q8_0", "Q4_K"))
@pytest.mark.parametrize("shape", shapes.SELECTIONS)
def test_select_candidates(pack: _engine.gpu.Pack, dtype: str, shape: tuple[int, int, int], seed: int) -> None:
    op_cases.select_candidates(np.random.default_rng(seed), dtype, *shape, pack=pack)


def test_equal_scores_stay_in_order(pack: _engine.gpu.Pack) -> None:
    op_cases.equal_scores_stay_in_order(pack=pack)


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("shape", SHAPES)
def test_grow_tree(pack: _engine.gpu.Pack, shape: tuple[int, ...], scores: str, seed: int) -> None:
    check_tree(np.random.default_rng(seed), scores, shape, pack=pack)
