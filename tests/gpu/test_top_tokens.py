"""The likeliest tokens on a device: ids as on the CPU, log probabilities against fp64."""

from __future__ import annotations

import numpy as np
import op_cases
import pytest
from lucebox import _engine
from lucebox.selftest import ops, shapes
from reference import top_tokens as reference
from tolerances import check

SCALES = ((1.0, 0.0), (0.25, 0.0), (1.0, 30.0), (0.7, 5.0))


@pytest.mark.parametrize(("scale", "softcap"), SCALES)
@pytest.mark.parametrize("k", (1, 2, 8))
@pytest.mark.parametrize("shape", shapes.TOP_TOKENS)
def test_top_tokens(
    pack: _engine.gpu.Pack, shape: tuple[int, int], k: int, scale: float, softcap: float, seed: int
) -> None:
    op_cases.top_tokens(np.random.default_rng(seed), *shape, k, scale, softcap, pack=pack)


@pytest.mark.parametrize("k", (1, 3, 8))
@pytest.mark.parametrize("vocab", (8, 1028, 5001))
def test_wherever_the_likeliest_are(pack: _engine.gpu.Pack, vocab: int, k: int, seed: int) -> None:
    """All in one thread's parts, in neighbours, at the ends, in order, or tied."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(7, vocab)).astype(np.float32)
    rows[0, :: max(1, min(1024, vocab // 2))] += 50
    rows[1, vocab // 2 : vocab // 2 + 8] += 50
    rows[2, [0, -1]] += 50
    rows[3], rows[4] = np.arange(vocab), -np.arange(vocab)
    rows[5], rows[6] = 0, rng.integers(-2, 3, vocab)
    ids, logprobs = ops.top_tokens(rows, k, pack=pack)
    want_ids, want = reference.top_tokens(rows, k)
    assert np.array_equal(ids, want_ids)
    size = np.abs(rows).max(axis=1, keepdims=True) + 1
    check("logprob", logprobs - size, want - size)


@pytest.mark.parametrize("vocab", (100, 4099))
def test_rows_without_numbers(pack: _engine.gpu.Pack, vocab: int, seed: int) -> None:
    logits = np.random.default_rng(seed).normal(size=(5, vocab)).astype(np.float32)
    logits[0, 3] = np.nan
    logits[1, -2] = np.inf
    logits[2, : vocab - 3] = -np.inf
    logits[3] = np.nan
    for softcap in (0.0, 8.0):
        ids, logprobs = ops.top_tokens(logits, 8, softcap=softcap, pack=pack)
        beside_ids, beside = ops.top_tokens(logits, 8, softcap=softcap)
        assert np.array_equal(ids, beside_ids)
        assert np.array_equal(np.isnan(logprobs), np.isnan(beside))
        assert np.array_equal(np.isinf(logprobs), np.isinf(beside))
