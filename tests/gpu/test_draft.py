"""Ops of drafting on a device: against fp64, and beside the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from block_conv_data import SHAPES, block
from grow_tree_data import SCORES, check_tree
from grow_tree_data import SHAPES as TREE_SHAPES
from lucebox import _engine
from lucebox.selftest import ops
from previous_row_appends import appends
from reference import block_conv as block_conv_reference
from reference import linear as linear_reference
from reference import select_candidates as select_reference
from tolerances import check


@pytest.mark.parametrize(
    ("rows", "dim", "column", "width"), ((1, 1, 0, 1), (3, 7, 5, 13), (70, 64, 64, 192), (2, 1024, 1024, 4100))
)
def test_copy_rows(pack: _engine.gpu.Pack, rows: int, dim: int, column: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(rows, dim)).astype(np.float32), rng.normal(size=(rows, width)).astype(np.float32)
    got = ops.copy_rows(x, y, column, pack=pack)
    y[:, column : column + dim] = x
    assert np.array_equal(got, y)


@pytest.mark.parametrize(("rows", "dim", "y_rows", "first"), ((1, 5, 4, 7), (3, 8, 4, 2), (1, 1024, 128, 300)))
def test_copies_into_a_ring(pack: _engine.gpu.Pack, rows: int, dim: int, y_rows: int, first: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(rows, dim)).astype(np.float32), rng.normal(size=(y_rows, dim + 4)).astype(np.float32)
    got = ops.copy_rows(x, y, 4, first, pack=pack)
    y[(first + np.arange(rows)) % y_rows, 4 : 4 + dim] = x
    assert np.array_equal(got, y)


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
@pytest.mark.parametrize(("rows", "taps", "dim", "group"), SHAPES)
def test_block_conv(pack: _engine.gpu.Pack, rows: int, taps: int, dim: int, group: int, adds: bool, seed: int) -> None:
    arguments, size = block(np.random.default_rng(seed), rows, taps, dim, group, adds)
    got = ops.block_conv(*arguments, pack=pack)
    check("linear", got, block_conv_reference.block_conv(*arguments), size)
    check("linear", got, ops.block_conv(*arguments), size)


@pytest.mark.parametrize("dtype", ("F32", "F16", "BF16", "Q8_0", "Q4_K"))
@pytest.mark.parametrize(("rows", "k", "blocks"), ((1, 1, 1), (7, 4, 1), (15, 8, 2), (63, 3, 1)))
def test_select_candidates(pack: _engine.gpu.Pack, dtype: str, rows: int, k: int, blocks: int, seed: int) -> None:
    """Candidates whose scores are as good as equal may change places: then everything below may differ, so the margin
    between the best two of each row is checked first."""
    rng = np.random.default_rng(seed)
    values = linear_reference.block_size(dtype)[0]
    rank, vocab = blocks * (values if values > 1 else 37), 50
    before, after = (linear_reference.random_weights(dtype, vocab * rank, rng) for _ in range(2))
    tables = [linear_reference.decode(table, dtype).reshape(vocab, rank) for table in (before, after)]
    hidden = rng.normal(size=(rows, rank)).astype(np.float32)
    ids = np.array([rng.permutation(vocab)[:k] for _ in range(rows)], np.int32)
    logprobs = -np.sort(rng.exponential(2, size=(rows, k)), axis=1).astype(np.float32)
    want_ids, want, size = select_reference.select_candidates(hidden, *tables, 7, ids, logprobs)
    n = rows  # rows whose order is certain
    if k > 1 and (close := np.flatnonzero(-np.diff(want, axis=1).max(axis=1) < 1e-4 * size[:, 0])).size:
        n = int(close[0])
    got_ids, got = ops.select_candidates(hidden, before, after, dtype, 7, ids, logprobs, pack=pack)
    assert np.array_equal(got_ids[:n], want_ids[:n])
    check("linear", got[:n], want[:n], size[:n] + 1)


def test_equal_scores_stay_in_order(pack: _engine.gpu.Pack) -> None:
    zeros = np.zeros(50 * 32, np.float32).view(np.uint8)
    ids, logprobs = np.array([[9, 3, 5], [7, 1, 2]], np.int32), np.full((2, 3), -1.5, np.float32)
    got_ids, _ = ops.select_candidates(np.ones((2, 32), np.float32), zeros, zeros, "F32", 0, ids, logprobs, pack=pack)
    assert np.array_equal(got_ids, ids)


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("shape", TREE_SHAPES)
def test_grow_tree(pack: _engine.gpu.Pack, shape: tuple[int, ...], scores: str, seed: int) -> None:
    check_tree(np.random.default_rng(seed), scores, shape, pack=pack)
