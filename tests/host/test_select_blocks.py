"""Block-sparse attention on the CPU: means of keys, the selection, and attention to selected blocks, against fp64."""

from __future__ import annotations

import numpy as np
import pytest
from kv_cache import Cache, filled
from lucebox.selftest import ops
from numpy.typing import NDArray
from reference import attention as dense
from reference import select_blocks as reference
from tolerances import check

SHAPES = ((8, 2, 64), (9, 3, 32), (4, 4, 40))  # 32, 42 and 128 rows to a query block


def case(n_past: int, rows: int, heads: int, kv_heads: int, dim: int) -> tuple[Cache, NDArray[np.float32]]:
    rng = np.random.default_rng(n_past + rows)
    cache = filled(n_past + rows, kv_heads, dim, "f16", "f16", rng)
    return cache, rng.normal(size=(rows, heads, dim)).astype(np.float32) * np.float32(3)


@pytest.mark.parametrize(("n_past", "rows"), ((0, 100), (0, 128), (100, 29), (700, 333)))
def test_means_of_the_blocks_that_an_append_completes(n_past: int, rows: int) -> None:
    cache, _ = case(n_past, rows, 8, 2, 64)
    before = np.full((2, 64, 9), 7, np.float32)
    got = ops.key_means(before.copy(), cache.k_pages, "f16", cache.table, n_past, rows)
    first, end = n_past // 128, (n_past + rows) // 128
    check("linear", got[:, :, first:end], reference.key_means(cache.keys)[:, :, first:end], 4.0)
    assert np.array_equal(np.delete(got, range(first, end), 2), np.delete(before, range(first, end), 2))


@pytest.mark.parametrize("alpha", (0.05, 0.3, 1.0))
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
@pytest.mark.parametrize(("n_past", "rows"), ((0, 100), (0, 300), (900, 200), (1023, 131)))
def test_selection(n_past: int, rows: int, heads: int, kv_heads: int, dim: int, alpha: float) -> None:
    """Blocks whose score is next to the threshold may go either way; all others are as in the reference."""
    cache, q = case(n_past, rows, heads, kv_heads, dim)
    means = reference.key_means(cache.keys)
    last = reference.last_blocks(rows, heads // kv_heads, n_past)
    scores = reference.block_scores(q, means, n_past, dim**-0.5)
    given = np.zeros((kv_heads, dim, (n_past + rows + 127) // 128), np.float32)
    given[:, :, : means.shape[2]] = means
    got = ops.select_blocks(q, given, n_past, dim**-0.5, alpha, len(last))
    for index in np.ndindex(*got.shape[:2]):
        blocks = got[index][1 : 1 + got[index][0]]
        assert np.all(np.diff(blocks) > 0)
        surely, perhaps = (np.flatnonzero(reference.selected(scores, last, a)[index])
                           for a in (alpha * (1 + 1e-5), alpha * (1 - 1e-5)))  # fmt: skip
        assert set(surely) <= set(blocks) <= set(perhaps)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), SHAPES)
@pytest.mark.parametrize(("n_past", "rows"), ((0, 200), (900, 131)))
def test_attention_to_selected_blocks(isa: str, n_past: int, rows: int, heads: int, kv_heads: int, dim: int) -> None:
    cache, q = case(n_past, rows, heads, kv_heads, dim)
    rng = np.random.default_rng(1)
    last = reference.last_blocks(rows, heads // kv_heads, n_past)
    chosen = reference.selected(rng.random((len(last), kv_heads, int(last.max()) + 1)), last, 0.7)
    mask = reference.mask_of(chosen, rows, heads, n_past)
    want = np.stack([dense.attention(q[:, [h]], cache.keys[:, [h * kv_heads // heads]],
                                     cache.values[:, [h * kv_heads // heads]], dim**-0.5, mask[:, h])[:, 0]
                     for h in range(heads)], 1)  # fmt: skip
    lists = reference.lists_of(chosen, chosen.shape[2] + 3)
    got = ops.attention(q, *cache.pages, n_past, dim**-0.5, blocks=lists, isa=isa)
    check("attention", got, want, np.abs(cache.values).max())
    every = reference.selected(np.ones_like(chosen, float), last, 0.0)
    whole = ops.attention(q, *cache.pages, n_past, dim**-0.5, blocks=reference.lists_of(every, 40), isa=isa)
    assert np.array_equal(whole, ops.attention(q, *cache.pages, n_past, dim**-0.5, isa=isa))
