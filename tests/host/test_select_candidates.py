"""DFlash 2's selector, against fp64 from the decoded tables."""

from __future__ import annotations

import numpy as np
import pytest
from lucebox.selftest import ops
from reference import linear as linear_reference
from reference import select_candidates as reference
from tolerances import check


@pytest.mark.parametrize("dtype", ("F32", "F16", "BF16", "Q8_0", "Q4_K"))
@pytest.mark.parametrize(("rows", "k", "blocks"), ((1, 1, 1), (7, 4, 1), (15, 8, 2), (63, 3, 1)))
def test_select_candidates(isa: str, dtype: str, rows: int, k: int, blocks: int) -> None:
    rng = np.random.default_rng(rows)
    values = linear_reference.block_size(dtype)[0]
    rank, vocab = blocks * (values if values > 1 else 37), 50
    before, after = (linear_reference.random_weights(dtype, vocab * rank, rng) for _ in range(2))
    tables = [linear_reference.decode(table, dtype).reshape(vocab, rank) for table in (before, after)]
    hidden = rng.normal(size=(rows, rank)).astype(np.float32)
    ids = np.array([rng.permutation(vocab)[:k] for _ in range(rows)], np.int32)
    logprobs = -np.sort(rng.exponential(2, size=(rows, k)), axis=1).astype(np.float32)
    want_ids, want, size = reference.select_candidates(hidden, *tables, 7, ids, logprobs)
    got_ids, got = ops.select_candidates(hidden, before, after, dtype, 7, ids, logprobs, isa=isa)
    assert np.array_equal(got_ids, want_ids)
    check("linear", got, want, size + 1)


def test_equal_scores_stay_in_order(isa: str) -> None:
    zeros = np.zeros(50 * 32, np.float32).view(np.uint8)
    ids, logprobs = np.array([[9, 3, 5], [7, 1, 2]], np.int32), np.full((2, 3), -1.5, np.float32)
    got_ids, got = ops.select_candidates(np.ones((2, 32), np.float32), zeros, zeros, "F32", 0, ids, logprobs, isa=isa)
    assert np.array_equal(got_ids, ids)
    check("linear", got, np.full((2, 3), -np.log(3.0)))
