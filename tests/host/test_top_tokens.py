"""The likeliest tokens: order, ties, log probabilities, and rows that hold no numbers."""

from __future__ import annotations

from itertools import product

import numpy as np
import op_cases
import pytest
from lucebox.selftest import ops, shapes
from reference import top_tokens as reference

SCALES = ((1.0, 0.0), (0.25, 0.0), (1.0, 30.0), (0.7, 5.0))


@pytest.mark.parametrize(("scale", "softcap"), SCALES)
def test_top_tokens(isa: str, scale: float, softcap: float) -> None:
    for shape, k in product(shapes.TOP_TOKENS, (1, 2, 8)):
        op_cases.top_tokens(np.random.default_rng(shape), *shape, k, scale, softcap, isa=isa, threads=2)


@pytest.mark.parametrize("vocab", (8, 77, 4096))
def test_ties_go_to_the_lower_id(isa: str, vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    for logits in (np.zeros((2, vocab)), rng.integers(-2, 3, (2, vocab)), np.tile([0.0, -0.0], (2, vocab))[:, :vocab]):
        ids, _ = ops.top_tokens(logits.astype(np.float32), 8, isa=isa)
        assert np.array_equal(ids, reference.top_tokens(logits.astype(np.float32), 8)[0])


def test_rows_without_numbers(isa: str) -> None:
    """NaN comes last and has every log probability of its row NaN; -infinity is a probability of 0."""
    logits = np.random.default_rng(0).normal(size=(5, 100)).astype(np.float32)
    logits[0, 3] = np.nan
    logits[1, 98] = np.inf
    logits[2, :97] = -np.inf
    logits[3] = np.nan
    ids, logprobs = ops.top_tokens(logits, 8, isa=isa)
    finite = np.where(np.isnan(logits), -np.inf, logits)
    assert np.array_equal(ids[:3], np.argsort(-finite[:3], axis=1, kind="stable")[:, :8])
    assert ids[3].tolist() == list(range(8))
    assert np.isnan(logprobs[[0, 1, 3]]).all() and np.isfinite(logprobs[4]).all()
    assert np.isfinite(logprobs[2, :3]).all() and (logprobs[2, 3:] == -np.inf).all()
