"""KeyScores on the CPU against fp64 from the same stored keys."""

from __future__ import annotations

import numpy as np
import pytest
from kv_cache import filled
from lucebox.errors import InvalidRequestError
from lucebox.selftest import ops
from reference import kv_types
from reference.key_scores import key_scores
from tolerances import check


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), ((8, 2, 256), (9, 3, 64), (4, 4, 40), (6, 1, 8)))
@pytest.mark.parametrize(
    ("n_past", "first_row", "rows"), ((0, 0, 1), (0, 3, 5), (61, 0, 3), (64, 0, 1), (100, 20, 8), (250, 5, 16))
)
def test_against_the_reference(
    isa: str, heads: int, kv_heads: int, dim: int, n_past: int, first_row: int, rows: int
) -> None:
    """One to 16 rows across page boundaries; slots after the rows are NaN, and their scores stay unchanged."""
    rng = np.random.default_rng(n_past + rows)
    n = n_past + first_row + rows
    cache = filled(n, kv_heads, dim, "f16", "f16", rng, isa=isa)
    q = rng.normal(size=(rows, heads, dim)).astype(np.float32) * np.float32(3)
    before = rng.uniform(0, 0.02, (rows, n + 5)).astype(np.float32)
    got = ops.key_scores(q, cache.k_pages, "f16", cache.table, n_past, dim**-0.5, before.copy(), first_row, isa=isa)
    want = before.astype(np.float64)
    want[:, :n] = np.maximum(want[:, :n], key_scores(q, cache.keys, dim**-0.5))
    for t in range(rows):  # a row's later slots
        want[t, n - rows + t + 1 :] = before[t, n - rows + t + 1 :]
    check("key_scores", got, want, want.max())
    assert np.array_equal(got[:, n:], before[:, n:])


@pytest.mark.parametrize("kv", kv_types.TYPES)
def test_every_type_of_keys(isa: str, kv: str) -> None:
    rng = np.random.default_rng(5)
    cache = filled(150, 2, 64, kv, "f16", rng, isa=isa)
    q = rng.normal(size=(8, 6, 64)).astype(np.float32)
    got = ops.key_scores(
        cache.queries(q), cache.k_pages, kv, cache.table, 142, 0.125, np.zeros((8, 150), np.float32), isa=isa
    )
    want = key_scores(cache.queries(q), cache.keys, 0.125)
    check("key_scores", got, want, want.max())


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
