"""KeyScores on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from key_score_cases import *  # noqa: F403
from kv_cache import filled
from lucebox.errors import InvalidRequestError
from lucebox.selftest import ops


@pytest.fixture
def on(isa: str) -> dict[str, Any]:
    return {"isa": isa}


def test_more_threads_change_no_bit(isa: str) -> None:
    rng = np.random.default_rng(6)
    cache = filled(1500, 2, 64, "f16", "f16", rng)
    q = rng.normal(size=(8, 4, 64)).astype(np.float32)
    one, three = (
        ops.key_scores(q, cache.k_pages, "f16", cache.table, 1492, 0.1, np.zeros((8, 1500), np.float32), isa=isa,
                       threads=n)
        for n in (1, 3)
    )  # fmt: skip
    assert np.array_equal(one, three)


def test_too_many_rows() -> None:
    cache = filled(64, 2, 64, "f16", "f16", np.random.default_rng(0))
    q = np.zeros((17, 4, 64), np.float32)
    with pytest.raises(InvalidRequestError, match="17 rows"):
        ops.key_scores(q, cache.k_pages, "f16", cache.table, 47, 0.1, np.zeros((17, 64), np.float32))
