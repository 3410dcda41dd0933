"""Block-sparse attention on a device: means of keys, the selection, and attention to selected blocks."""

from __future__ import annotations

import numpy as np
import pytest
from kv_cache import Cache, filled
from lucebox import _engine
from lucebox.errors import UnsupportedError
from lucebox.selftest import ops
from numpy.typing import NDArray
from reference import attention as dense
from reference import kv_types
from reference import select_blocks as reference
from tolerances import check

KERNELS = {"prefill_16": "sparse_16", "prefill_32": "sparse_32", "prefill_sm90": "sparse_sm90"}


def case(seed: int, n_past: int, rows: int, heads: int, kv_heads: int, dim: int) -> tuple[Cache, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    cache = filled(n_past + rows, kv_heads, dim, "f16", "f16", rng)
    return cache, rng.normal(size=(rows, heads, dim)).astype(np.float32) * np.float32(3)


@pytest.mark.parametrize("kv", kv_types.TYPES)
def test_means(pack: _engine.gpu.Pack, kv: str, seed: int) -> None:
    cache = filled(390, 2, 64, kv, "f16", np.random.default_rng(seed))
    got = ops.key_means(np.full((2, 64, 5), 7, np.float32), cache.k_pages, kv, cache.table, 100, 290, pack=pack)
    want = np.full((2, 64, 5), 7.0)
    want[:, :, :3] = reference.key_means(cache.keys)
    check("key_scores_tq3" if kv == "tq3_0" else "linear", got, want, 8.0)


@pytest.mark.parametrize("dim", (40, 128, 256))
def test_means_of_any_head(pack: _engine.gpu.Pack, dim: int, seed: int) -> None:
    cache = filled(300, 3, dim, "f16", "f16", np.random.default_rng(seed))
    got = ops.key_means(np.zeros((3, dim, 2), np.float32), cache.k_pages, "f16", cache.table, 0, 300, pack=pack)
    check("linear", got, reference.key_means(cache.keys), 4.0)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "n_past", "rows"),
    ((4, 2, 128, 0, 300), (6, 2, 64, 8300, 50), (4, 4, 64, 120, 140), (8, 1, 256, 4200, 17)),
)
def test_selection(
    pack: _engine.gpu.Pack, heads: int, kv_heads: int, dim: int, n_past: int, rows: int, seed: int
) -> None:
    """Blocks whose score is next to the threshold may go either way; all others are as in the reference. The second
    and the last have more than one tile of means."""
    rng = np.random.default_rng(seed)
    n = n_past + rows
    q = rng.normal(size=(rows, heads, dim)).astype(np.float32) * np.float32(3)
    means = np.full((kv_heads, dim, (n + 127) // 128), np.nan, np.float32)
    means[:, :, : n // 128] = rng.normal(size=(kv_heads, dim, n // 128)) * 0.8
    last = reference.last_blocks(rows, heads // kv_heads, n_past)
    scores = reference.block_scores(q, means[:, :, : n // 128].astype(np.float64), n_past, dim**-0.5)
    for alpha in (0.1, 0.7):
        got = ops.select_blocks(q, means, n_past, dim**-0.5, alpha, len(last), pack=pack)
        n_selected = 0
        for index in np.ndindex(*got.shape[:2]):
            blocks = got[index][1 : 1 + got[index][0]]
            assert np.all(np.diff(blocks) > 0)
            surely, perhaps = (np.flatnonzero(reference.selected(scores, last, a)[index])
                               for a in (alpha * 1.02, alpha * 0.98))  # fmt: skip
            assert set(surely) <= set(blocks) <= set(perhaps)
            n_selected += len(blocks)
        if n > 4000 and alpha > 0.5:
            assert n_selected < 0.9 * got.shape[0] * got.shape[1] * (n // 128)


# The rows of each case are enough for a dense launch without splits on the simulator.
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "n_past", "rows"),
    (
        (4, 2, 128, 300, 190),
        pytest.param(6, 2, 64, 0, 700, marks=pytest.mark.slow),  # 3 s each
        pytest.param(2, 2, 64, 1000, 260, marks=pytest.mark.slow),
        pytest.param(4, 1, 256, 513, 70, marks=pytest.mark.slow),
    ),
)
def test_attention(
    pack: _engine.gpu.Pack, heads: int, kv_heads: int, dim: int, n_past: int, rows: int, seed: int
) -> None:
    cache, q = case(seed, n_past, rows, heads, kv_heads, dim)
    last = reference.last_blocks(rows, heads // kv_heads, n_past)
    if dim == 256 and pack.target.startswith(("gfx", "sm_75")):
        with pytest.raises(UnsupportedError, match="heads of 64 or 128"):
            ops.attention(q, *cache.pages, n_past, dim**-0.5, blocks=np.zeros((len(last), kv_heads, 9), np.int32),
                          pack=pack)  # fmt: skip
        return
    rng = np.random.default_rng(seed)
    chosen = reference.selected(rng.random((len(last), kv_heads, int(last.max()) + 1)), last, 0.7)
    mask = reference.mask_of(chosen, rows, heads, n_past)
    kv = [h * kv_heads // heads for h in range(heads)]
    want = np.stack([dense.attention(q[:, [h]], cache.keys[:, [kv[h]]], cache.values[:, [kv[h]]], dim**-0.5,
                                     mask[:, h])[:, 0] for h in range(heads)], 1)  # fmt: skip
    lists = reference.lists_of(chosen, chosen.shape[2] + 1)
    ops.take_started(pack)
    got = ops.attention(q, *cache.pages, n_past, dim**-0.5, blocks=lists, pack=pack)
    started = ops.take_started(pack)
    assert any(f"attention_{name}_f16_{dim}_kernel" in started for name in KERNELS.values())
    check("attention_f16", got, want, np.abs(cache.values).max())
    # All blocks: the bits of a dense kernel that has one split. The rows fill the simulator, but no large chip.
    every = reference.lists_of(reference.selected(np.ones_like(chosen, float), last, 0.0), chosen.shape[2] + 1)
    whole = ops.attention(q, *cache.pages, n_past, dim**-0.5, blocks=every, pack=pack)
    plain = ops.attention(q, *cache.pages, n_past, dim**-0.5, pack=pack)
    check("attention_f16", whole, plain, np.abs(cache.values).max())
    is_split = "attention_merge_kernel" in ops.take_started(pack)
    assert not (is_split and pack.target == "sim")
    if not is_split:
        assert np.array_equal(whole, plain)


def test_all_blocks_are_dense_attention(pack: _engine.gpu.Pack, seed: int) -> None:
    """On chips of any size: rows that fill it."""
    n_sms = 4 if pack.target == "sim" else 300
    rows, heads = 32 * n_sms, 16
    cache, q = case(seed, 100, rows, heads, 8, 64)
    last = reference.last_blocks(rows, 2, 100)
    every = reference.selected(np.ones((len(last), 8, int(last.max()) + 1)), last, 0.0)
    ops.take_started(pack)
    plain = ops.attention(q, *cache.pages, 100, 0.125, pack=pack)
    assert "attention_merge_kernel" not in ops.take_started(pack)
    lists = reference.lists_of(every, int(last.max()) + 2)
    assert np.array_equal(ops.attention(q, *cache.pages, 100, 0.125, blocks=lists, pack=pack), plain)


def test_refusals(pack: _engine.gpu.Pack) -> None:
    cache = filled(300, 2, 64, "q8_0", "q8_0", np.random.default_rng(0))
    q = np.zeros((200, 4, 64), np.float32)
    with pytest.raises(UnsupportedError, match="selected blocks take an f16 cache"):
        ops.attention(q, *cache.pages, 100, 0.1, blocks=np.zeros((4, 2, 4), np.int32), pack=pack)
