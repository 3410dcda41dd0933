"""Packed KV types on a device, for K and V of every type: the stored values, and attention compared with fp64 from the
stored values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attention_cases
import gpu_packs
import numpy as np
import pytest
from attention_cases import compare, normal
from kv_cache import filled, poisoned
from lucebox import _engine
from lucebox.errors import InvalidRequestError
from lucebox.selftest import ops
from numpy.typing import NDArray
from reference import kv_types
from tolerances import check, tolerance
from tree_data import path_to, random_tree

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
PAGE = kv_types.PAGE
TYPES = kv_types.TYPES
# Every type once as K and once as V, and pairs of two types that differ in every way.
PAIRS = (*((t, t) for t in TYPES if t not in ("f32", "f16", "bf16")), ("f16", "q4_0"), ("wht4", "bf16"),
         ("q8_0", "tq3_0"), ("bf16", "f16"), ("fp8", "q5_1"), ("wht3", "q4_1"))  # fmt: skip


@pytest.mark.parametrize(("k_type", "v_type"), PAIRS)
@pytest.mark.parametrize(
    ("dim", "heads", "n_past", "rows", "kernel"),
    (
        (64, 3, 63, 1, "decode_8"),
        (128, 1, 130, 7, "decode_8"),
        (256, 6, 190, 1, "decode_8"),
        (256, 4, 66, 3, "decode"),
        (128, 2, 70, 33, "prefill_16"),
        (64, 1, 31, 67, "prefill_32"),
        (512, 8, 70, 1, "wide_16"),
        (512, 4, 40, 11, "wide_32"),
    ),
)
def test_pairs(
    pack: _engine.gpu.Pack, k_type: str, v_type: str, dim: int, heads: int, n_past: int, rows: int, kernel: str,
    seed: int,
) -> None:  # fmt: skip
    """One to 67 rows across page boundaries, with a gate."""
    rng = np.random.default_rng(seed)
    cache = filled(n_past + rows, 2, dim, k_type, v_type, rng)
    ops.take_started(pack)
    q, gate = normal(rng, rows, 2 * heads, dim) * np.float32(3), normal(rng, rows, 2 * heads, dim)
    compare({"pack": pack}, cache, q, n_past, gate)
    started = set(ops.take_started(pack))
    if not attention_cases.has_matrix_units({"pack": pack}, dim):
        assert "attention_fp32_kernel" in started
        return
    names = {kernel, "decode"} if kernel.startswith("decode") else {kernel, "prefill_16", "prefill_sm90"}
    assert started & {f"attention_{name}_packed_{dim}_kernel" for name in names}


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("dim", "heads", "rows", "n_past", "capacity"),
    ((64, 2, 63, 301, 0), (128, 1, 130, 129, 0), (256, 2, 70, 383, 0), (256, 6, 22, 190, 1500)),
)
def test_pairs_on_wgmma(
    pack: _engine.gpu.Pack, pack_folder: Path, dim: int, heads: int, rows: int, n_past: int, capacity: int, seed: int
) -> None:
    """Tiles that pass the ends of pages and of the context, more than the rings hold; trees where the rows allow it."""
    if not gpu_packs.has_kernel(gpu_packs.manifest_of(pack_folder), "attention_prefill_sm90_packed"):
        pytest.skip(f"the pack of {pack_folder.name} has no kernels on wgmma")
    rng = np.random.default_rng(seed)
    for pair in rng.choice(PAIRS, 3, replace=False):
        cache = filled(n_past + rows, 1, dim, *map(str, pair), rng, capacity=capacity)
        q, gate = normal(rng, rows, heads, dim) * np.float32(3), normal(rng, rows, heads, dim)
        parent, masks = random_tree(rows, rng) if rows <= 64 else (None, None)
        ops.take_started(pack)
        compare({"pack": pack}, cache, q, n_past, gate, masks, parent)
        assert f"attention_prefill_sm90_packed_{dim}_kernel" in ops.take_started(pack)


def test_every_pair(pack: _engine.gpu.Pack, seed: int) -> None:
    """All 144 pairs, with one row or a tree of five, across a page boundary; checks that the pair's kernel runs."""
    rng = np.random.default_rng(seed)
    for k_type in TYPES:
        for v_type in TYPES:
            rows, dim = int(rng.choice([1, 5])), int(rng.choice([64, 32, 96]))
            cache = filled(62 + rows, 1, dim, k_type, v_type, rng)
            parent, masks = random_tree(rows, rng)
            compare({"pack": pack}, cache, normal(rng, rows, 2, dim), 62, None, masks, parent)


@pytest.mark.parametrize(("mask", "first_slot", "window"), (("chain", 0, 40), ("all", 7, 65), ("random", 0, 1)))
@pytest.mark.parametrize(
    ("dim", "heads", "rows", "n_past", "capacity"),
    (
        (64, 1, 16, 130, 0),
        (256, 2, 4, 190, 1500),
        (128, 1, 7, 260, 0),
        (256, 2, 5, 190, 1500),
        (128, 2, 22, 200, 1500),
        (256, 6, 11, 300, 1500),
        (160, 2, 5, 140, 1500),
    ),
)
def test_trees_windows_and_splits(
    pack: _engine.gpu.Pack, dim: int, heads: int, rows: int, n_past: int, capacity: int, mask: str, first_slot: int,
    window: int, seed: int,
) -> None:  # fmt: skip
    """A large cache splits the context."""
    rng = np.random.default_rng(seed)
    hidden = {"first_slot": first_slot, "window": window}
    pair = PAIRS[int(rng.integers(len(PAIRS)))]
    attention_cases.block({"pack": pack}, rng, pair, heads, 1, dim, n_past, rows, capacity, mask, **hidden)


@pytest.mark.parametrize("n_past", (0, 700))
def test_the_merge_rotates_and_rounds(pack: _engine.gpu.Pack, n_past: int, seed: int) -> None:
    """Rounding in the merge gives the same bits as rounding afterwards, with one split and with many."""
    rng = np.random.default_rng(seed)
    cache = filled(n_past + 5, 1, 128, "q8_0", "wht4", rng, capacity=1200)
    q, gate = normal(rng, 5, 3, 128), normal(rng, 5, 3, 128)
    plain = compare({"pack": pack}, cache, q, n_past, gate)
    attention_cases.check_rounded(pack, rng, plain, (q, *cache.pages, n_past, 128**-0.5, gate))


@pytest.mark.first_case
@pytest.mark.parametrize(("async_copy", "shared"), ((False, 65536), (True, 101376)))
@pytest.mark.parametrize(("dim", "rows"), ((256, 1), (256, 30), (64, 2), (128, 70)))
def test_rings_of_smaller_chips(
    pack_folder: Path, dim: int, rows: int, async_copy: bool, shared: int, seed: int
) -> None:
    """Without a ring, and with rings of other sizes, the bits are the same."""
    manifest = gpu_packs.manifest_of(pack_folder)
    absent = ("prefill_sm90", "decode_8") if not async_copy else ("prefill_sm90",)  # on smaller chips
    for code in manifest["generations"]:
        code["kernels"] = [kernel for kernel in code["kernels"] if not any(name in kernel["name"] for name in absent)]
    whole = gpu_packs.load(pack_folder, manifest)
    manifest["capabilities"] |= {"async_copy": async_copy, "shared_block_bytes": shared}
    smaller = gpu_packs.load(pack_folder, manifest)
    rng = np.random.default_rng(seed)
    for pair in (("q5_1", "wht3"), ("f16", "fp8")):
        cache = filled(150 + rows, 1, dim, *pair, rng)
        q = normal(rng, rows, 2, dim)
        want = ops.attention(q, *cache.pages, 150, 0.1, pack=whole)
        assert np.array_equal(ops.attention(q, *cache.pages, 150, 0.1, pack=smaller), want)


def check_stored(got: NDArray[Any], want: NDArray[Any], kv: str, dim: int) -> None:
    """Compares a device's pages with the CPU's: equal, except that rounding may give a neighbouring code; untouched
    slots keep their NaN."""
    mine, beside = (kv_types.stored_values(pages, kv, dim) for pages in (got, want))
    there = ~np.isnan(beside).any(-1)
    assert np.array_equal(~np.isnan(mine).any(-1), there)
    here, cpu = (kv_types.split(pages, kv, dim) for pages in (got, want))
    for a, b in ((here.codes, cpu.codes), (here.scales.view(np.uint16), cpu.scales.view(np.uint16))):
        assert np.array_equal(a[~there], b[~there])
    unit = np.abs(beside[there]).max(-1, keepdims=True)
    check("kv_store", mine[there], beside[there], unit)
    if kv_types.bits_of(kv)[0] < 16:
        assert np.mean(here.codes[there] != cpu.codes[there]) < tolerance("kv_store", "other_codes")


@pytest.mark.parametrize("kv", TYPES)
@pytest.mark.parametrize(
    ("rows", "kv_heads", "dim", "n_past"),
    ((1, 1, 32, 63), (9, 2, 96, 60), (70, 3, 128, 63), (3, 2, 256, 0), (2, 1, 512, 1)),
)
def test_append(pack: _engine.gpu.Pack, kv: str, rows: int, kv_heads: int, dim: int, n_past: int, seed: int) -> None:
    """V and K have different types. Some heads are all zeros or have one nonzero value."""
    rng = np.random.default_rng(seed)
    v_type = TYPES[(TYPES.index(kv) + 5) % len(TYPES)]
    k, v = normal(rng, rows, kv_heads, dim), normal(rng, rows, kv_heads, dim)
    k[0, 0], v[-1, -1, 1:] = 0, 0
    n_pages = (n_past + rows) // PAGE + 2
    pages = [poisoned(n_pages, kv_heads, t, dim) for t in (kv, v_type)]
    where = (kv, v_type, rng.permutation(n_pages).astype(np.int32), n_past)
    got = ops.kv_append(k, v, *pages, *where, pack=pack)
    beside = ops.kv_append(k, v, *pages, *where)
    for mine, want, t in zip(got, beside, where[:2], strict=True):
        check_stored(mine, want, t, dim)


@pytest.mark.parametrize("kv", ("F16", "q5_1", "wht4"))
def test_append_and_move_with_values_in_keys(pack: _engine.gpu.Pack, kv: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_past, rows = 50, 30
    cache = filled(n_past + rows, 2, 512, kv, kv, rng, key_tail=128)
    path = path_to(random_tree(rows, rng)[0], rows - 1)
    mine, beside = (
        (
            ops.kv_append(cache.k[: 2 * rows], None, *cache.pages, 3, **cache.sizes, **on)[0],
            ops.kv_move(*cache.pages, path, n_past, **cache.sizes, **on)[0],
        )
        for on in ({"pack": pack}, {})
    )
    check_stored(mine[0], beside[0], kv, 640)
    assert mine[1].tobytes() == beside[1].tobytes()


@pytest.mark.parametrize("kv", TYPES)
@pytest.mark.parametrize(("rows", "heads", "dim", "n_pairs"), ((1, 3, 256, 32), (3, 1, 64, 32), (70, 2, 96, 7)))
def test_prepare(pack: _engine.gpu.Pack, kv: str, rows: int, heads: int, dim: int, n_pairs: int, seed: int) -> None:
    """Queries are rotated if keys are, and the stored rows equal kv_append's."""
    rng = np.random.default_rng(seed)
    v_type = TYPES[(TYPES.index(kv) + 7) % len(TYPES)]
    u, k, v = normal(rng, rows, heads, dim), normal(rng, rows, 2, dim), normal(rng, rows, 2, dim)
    w = normal(rng, dim), normal(rng, dim)
    angle = rng.uniform(-9, 9, (rows, n_pairs))
    table = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    n_past = 62
    n_pages = (n_past + rows) // PAGE + 2
    pages = [poisoned(n_pages, 2, t, dim) for t in (kv, v_type)]
    where = (kv, v_type, rng.permutation(n_pages).astype(np.int32), n_past)
    got = ops.attention_prepare(u, k, v, *w, *table, *pages, *where, 1e-6, pack=pack)
    beside = ops.attention_prepare(u, k, v, *w, *table, *pages, *where, 1e-6)
    q: F64 = ops.rope(ops.rms_norm(u, w[0], 1e-6), *table).astype(np.float64)
    if kv_types.is_rotated(kv):
        q = kv_types.rotate(q)
    check("attention_prepare", got[0], q, np.abs(q).max(axis=-1, keepdims=True))
    for mine, want, t in zip(got[1:], beside[1:], where[:2], strict=True):
        check_stored(mine, want, t, dim)


@pytest.mark.parametrize("kv", TYPES)
@pytest.mark.parametrize("dim", (96, 128))
def test_move_keeps_the_accepted_path(pack: _engine.gpu.Pack, kv: str, dim: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_past, rows = 50, 30  # the tree spans two pages
    v_type = TYPES[(TYPES.index(kv) + 3) % len(TYPES)]
    cache = filled(n_past + rows, 3, dim, kv, v_type, rng)
    parent, _ = random_tree(rows, rng)
    for path in (path_to(parent, rows - 1), np.arange(0, rows, 2)):
        got = ops.kv_move(*cache.pages, path.astype(np.int32), n_past, dim, pack=pack)
        beside = ops.kv_move(*cache.pages, path.astype(np.int32), n_past, dim)
        for mine, want in zip(got, beside, strict=True):
            assert mine.tobytes() == want.tobytes()


def test_what_is_refused(pack: _engine.gpu.Pack) -> None:
    pages = np.zeros((1, 1, PAGE, kv_types.slot_bytes("q8_0", 40)), np.uint8)
    with pytest.raises(InvalidRequestError, match=r"\[attention\] .*: q8_0 takes head_dim in multiples of 32"):
        q = np.zeros((1, 1, 40), np.float32)
        ops.attention(q, pages, pages, "q8_0", "q8_0", np.zeros(1, np.int32), 0, 1.0, pack=pack)
