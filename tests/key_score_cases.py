"""Tests of KeyScores, wherever the fixture `on` says: on the CPU (isa) or on a device (pack), against fp64 from the
same stored keys. Slots after the rows are NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kv_cache import filled
from lucebox.selftest import ops
from reference import kv_types
from reference.key_scores import key_scores
from tolerances import check


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "n_past", "first_row", "rows"),
    (
        (16, 8, 128, 500, 0, 8),  # Qwen3-0.6B
        (8, 2, 256, 0, 3, 5),
        (9, 3, 64, 0, 0, 1),
        (9, 3, 64, 61, 2, 3),
        (4, 4, 40, 64, 0, 1),
        (20, 1, 64, 100, 20, 5),  # more heads to a KV head than a pass has queries
        (6, 1, 8, 250, 5, 16),
    ),
)
def test_against_the_reference(
    on: dict[str, Any], heads: int, kv_heads: int, dim: int, n_past: int, first_row: int, rows: int, seed: int
) -> None:
    """One to 16 rows across page boundaries; the scores of later slots stay unchanged."""
    rng = np.random.default_rng(seed)
    n = n_past + first_row + rows
    cache = filled(n, kv_heads, dim, "f16", "f16", rng)
    q = rng.normal(size=(rows, heads, dim)).astype(np.float32) * np.float32(3)
    before = rng.uniform(0, 0.02, (rows, n + 5)).astype(np.float32)
    given = q, cache.k_pages, "f16", cache.table, n_past, dim**-0.5
    got = ops.key_scores(*given, before.copy(), first_row, **on)
    want = before.astype(np.float64)
    want[:, :n] = np.maximum(want[:, :n], key_scores(q, cache.keys, dim**-0.5))
    for t in range(rows):  # a row's later slots
        want[t, n - rows + t + 1 :] = before[t, n - rows + t + 1 :]
    family = "key_scores_device" if "pack" in on else "key_scores"
    check(family, got, want, want.max())
    check(family, got, ops.key_scores(*given, before.copy(), first_row), want.max())
    assert np.array_equal(got[:, n:], before[:, n:])
    assert np.array_equal(ops.key_scores(*given, before.copy(), first_row, **on), got)


@pytest.mark.parametrize("kv", kv_types.TYPES)
def test_every_type_of_keys(on: dict[str, Any], kv: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cache = filled(150, 2, 64, kv, "f16", rng)
    q = cache.queries(rng.normal(size=(8, 6, 64)).astype(np.float32))
    got = ops.key_scores(q, cache.k_pages, kv, cache.table, 142, 0.125, np.zeros((8, 150), np.float32), **on)
    want = key_scores(q, cache.keys, 0.125)
    on_device = "key_scores_tq3" if kv == "tq3_0" else "key_scores_device"
    check(on_device if "pack" in on else "key_scores", got, want, want.max())
