"""Attention over the paged cache on a device, compared with fp64 from the same rounded keys and values, and with the
CPU."""

from __future__ import annotations

from pathlib import Path

import attention_cases
import gpu_packs
import numpy as np
import pytest
from attention_cases import FAST, check_rounded, compare, normal
from kv_cache import filled, poisoned
from lucebox import _engine, _kernels
from lucebox.errors import InvalidRequestError
from lucebox.selftest import ops
from numpy.typing import NDArray
from tolerances import check
from tree_data import path_to, random_tree

F32 = NDArray[np.float32]
PAGE = 64


@pytest.mark.parametrize(("dtype", "dim"), FAST)
@pytest.mark.parametrize(("heads", "n_past", "rows"), ((3, 0, 1), (3, 63, 1), (4, 64, 4), (1, 66, 9)))
def test_few_queries(
    pack: _engine.gpu.Pack, dtype: str, dim: int, heads: int, n_past: int, rows: int, seed: int
) -> None:
    """Up to 16 queries per KV head (3, 16 and 9), within one page and across page boundaries."""
    rng = np.random.default_rng(seed)
    cache = filled(n_past + rows, 2, dim, dtype, dtype, rng)
    compare({"pack": pack}, cache, normal(rng, rows, 2 * heads, dim) * np.float32(3), n_past)
    assert f"attention_decode_{dtype.lower()}_{dim}_kernel" in ops.take_started(pack)


@pytest.mark.parametrize(("dtype", "dim"), FAST)
@pytest.mark.parametrize(("heads", "n_past", "rows"), ((2, 31, 9), (1, 0, 65), (3, 40, 43), (2, 70, 66)))
def test_many_queries(
    pack: _engine.gpu.Pack, dtype: str, dim: int, heads: int, n_past: int, rows: int, seed: int
) -> None:
    """18, 65, 129 and 132 queries: less than one tile, and slightly more than one and two tiles. More than 64 queries,
    and chains of more than 64 rows, may use a separate kernel."""
    rng = np.random.default_rng(seed)
    cache = filled(n_past + rows, 1, dim, dtype, dtype, rng)
    compare({"pack": pack}, cache, normal(rng, rows, heads, dim) * np.float32(3), n_past)
    started = set(ops.take_started(pack))
    names = ("16", *(["32"] if rows > 64 else []), *(["sm90"] if rows * heads > 64 else []))
    wanted = {f"attention_prefill_{name}_{dtype.lower()}_{dim}_kernel" for name in names}
    assert started & wanted


@pytest.fixture
def pack_of_warps(pack_folder: Path) -> _engine.gpu.Pack:
    """A pack without the wgmma kernels, which chips with wgmma prefer for many queries."""
    return gpu_packs.load(pack_folder, gpu_packs.manifest_without(pack_folder, ".*_sm90_.*"))


@pytest.mark.parametrize(("dtype", "dim"), FAST)
@pytest.mark.parametrize(("heads", "n_past", "rows"), ((1, 0, 65), (3, 40, 43), (2, 70, 66)))
def test_many_queries_without_wgmma(
    pack_of_warps: _engine.gpu.Pack, dtype: str, dim: int, heads: int, n_past: int, rows: int, seed: int
) -> None:
    test_many_queries(pack_of_warps, dtype, dim, heads, n_past, rows, seed)


@pytest.mark.parametrize(("dim", "n_past"), ((64, 400), (256, 130)))
def test_rings_are_used_again(pack: _engine.gpu.Pack, dim: int, n_past: int, seed: int) -> None:
    """Four KV heads fill the simulator's chip unsplit, so that one block passes more tiles than its rings hold."""
    rng = np.random.default_rng(seed)
    cache = filled(n_past + 70, 4, dim, "F16", "F16", rng)
    compare({"pack": pack}, cache, normal(rng, 70, 4, dim) * np.float32(3), n_past, normal(rng, 70, 4, dim))


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), ((9, 3, 16), (4, 2, 40), (2, 1, 8), (1, 1, 504), (4, 4, 48)))
@pytest.mark.parametrize("types", (("F32", "F32"), ("F16", "BF16"), ("BF16", "F32")))
@pytest.mark.parametrize(("n_past", "rows"), ((0, 1), (70, 11)))
def test_any_type_and_dim(
    pack: _engine.gpu.Pack,
    types: tuple[str, str],
    heads: int,
    kv_heads: int,
    dim: int,
    n_past: int,
    rows: int,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    attention_cases.chain({"pack": pack}, rng, types, heads, kv_heads, dim, n_past, rows)
    assert "attention_fp32_kernel" in ops.take_started(pack)


@pytest.mark.first_case
@pytest.mark.parametrize("types", (("F16", "F16"), ("BF16", "BF16"), ("q8_0", "wht4")))
@pytest.mark.parametrize(
    ("heads", "n_past", "rows", "capacity", "window"),
    (
        (8, 0, 1, 0, 0),
        (3, 63, 1, 1500, 0),
        (4, 66, 4, 0, 0),
        (1, 31, 17, 1500, 0),
        (8, 40, 43, 0, 0),
        (2, 90, 40, 1500, 70),
    ),
)
def test_heads_of_512(
    pack: _engine.gpu.Pack, types: tuple[str, str], heads: int, n_past: int, rows: int, capacity: int, window: int,
    seed: int,
) -> None:  # fmt: skip
    """Steps of up to 16 queries per KV head, and 17, 344 and 80 of them in tiles of 32."""
    if not attention_cases.has_matrix_units({"pack": pack}, 512):
        pytest.skip("heads of 512 have kernels on matrix units on NVIDIA from sm_80 on")
    rng = np.random.default_rng(seed)
    cache = filled(n_past + rows, 2, 512, *types, rng, capacity)
    ops.take_started(pack)
    q, gate = normal(rng, 2, rows, 2 * heads, 512)
    compare({"pack": pack}, cache, q * np.float32(3), n_past, gate, window=window)
    queries, stored = 16 if heads * rows <= 16 else 32, types[0].lower() if types[0] == types[1] else "packed"
    assert ops.take_started(pack)[0] == f"attention_wide_{queries}_{stored}_512_kernel"


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("dtype", "heads", "n_past", "rows", "capacity", "hidden"),
    (
        ("F16", 8, 0, 1, 0, {}),
        ("q8_0", 3, 63, 1, 1500, {}),
        ("wht4", 1, 66, 9, 0, {"is_tree": True}),
        ("F16", 2, 66, 7, 1500, {"is_tree": True}),
        ("F16", 1, 31, 17, 1500, {}),
        ("BF16", 8, 40, 11, 0, {}),
        ("q5_1", 2, 90, 40, 1500, {"window": 70}),
    ),
)
def test_heads_of_512_with_values_in_keys(
    pack: _engine.gpu.Pack, dtype: str, heads: int, n_past: int, rows: int, capacity: int, hidden: dict[str, int],
    seed: int,
) -> None:  # fmt: skip
    if not attention_cases.has_matrix_units({"pack": pack}, 512, 128):
        pytest.skip("heads of 512 have kernels on matrix units on NVIDIA from sm_80 on")
    ops.take_started(pack)
    rng = np.random.default_rng(seed)
    attention_cases.in_keys({"pack": pack}, rng, dtype, 2 * heads, 2, 512, 128, n_past, rows, capacity, **hidden)
    queries, stored = 16 if heads * rows <= 16 else 32, "f16" if dtype == "F16" else "packed"
    assert ops.take_started(pack)[0] == f"attention_wide_tail_{queries}_{stored}_512_kernel"


@pytest.mark.parametrize(
    ("dtype", "dim", "key_tail", "n_past", "rows"),
    (("F32", 512, 128, 30, 5), ("F16", 128, 128, 0, 1), ("q8_0", 32, 64, 61, 9), ("wht3", 64, 128, 70, 3)),
)
def test_values_in_keys_of_any_head(
    pack: _engine.gpu.Pack, dtype: str, dim: int, key_tail: int, n_past: int, rows: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    attention_cases.in_keys({"pack": pack}, rng, dtype, 6, 2, dim, key_tail, n_past, rows, 0, rows == 9)
    assert "attention_fp32_kernel" in ops.take_started(pack)


@pytest.mark.parametrize(("dim", "n_pairs", "key_tail"), ((32, 4, 64), (512, 64, 128), (96, 9, 64)))
def test_keys_and_values_apart_give_the_same(
    pack: _engine.gpu.Pack, dim: int, n_pairs: int, key_tail: int, seed: int
) -> None:
    on = {"pack": pack}
    attention_cases.prepared_in_keys(on, np.random.default_rng(seed), "F32", 6, 2, dim, n_pairs, key_tail, 61, 9)


@pytest.mark.parametrize("rows", (1, 2, 7, 22, 64))
@pytest.mark.parametrize(("dtype", "dim"), (("F16", 64), ("BF16", 128), ("F32", 16), ("F16", 512)))
def test_tree(pack: _engine.gpu.Pack, dtype: str, dim: int, rows: int, seed: int) -> None:
    attention_cases.tree({"pack": pack}, np.random.default_rng(seed), dtype, dim, rows)


# The append's mask, first_slot and window.
HIDDEN = (("chain", 0, 40), ("all", 1, 0), ("all", 0, 500), ("random", 0, 1), ("random", 7, 65))


@pytest.mark.parametrize(("mask", "first_slot", "window"), HIDDEN)
@pytest.mark.parametrize(
    ("kernel", "dtype", "dim", "heads", "rows", "n_past", "capacity"),
    (
        ("decode", "F16", 64, 1, 16, 130, 0),
        ("decode", "BF16", 256, 2, 5, 1, 1500),
        ("prefill_16", "F16", 128, 2, 22, 200, 1500),
        ("prefill_sm90", "BF16", 64, 2, 64, 300, 0),
        ("prefill_sm90", "F16", 128, 8, 16, 131, 1500),
        ("prefill_sm90", "F16", 256, 6, 16, 700, 1500),
        ("fp32", "F32", 40, 2, 11, 140, 1500),
        ("decode", "F16", 128, 2, 1, 0, 0),
    ),
)
def test_blocks_and_windows(
    pack: _engine.gpu.Pack, kernel: str, dtype: str, dim: int, heads: int, rows: int, n_past: int, capacity: int,
    mask: str, first_slot: int, window: int, seed: int,
) -> None:  # fmt: skip
    """A large cache splits the context, and many splits have no pages."""
    rng, hidden = np.random.default_rng(seed), {"first_slot": first_slot, "window": window}
    ops.take_started(pack)
    attention_cases.block({"pack": pack}, rng, (dtype, dtype), heads, 1, dim, n_past, rows, capacity, mask, **hidden)
    started = ops.take_started(pack)
    name = "attention_fp32_kernel" if kernel == "fp32" else f"attention_{kernel}_{dtype.lower()}_{dim}_kernel"
    assert started[0] == name or (kernel == "prefill_sm90" and "prefill_16" in started[0])
    assert capacity == 0 or "attention_merge_kernel" in started


@pytest.mark.parametrize(("mask", "first_slot", "window"), HIDDEN)
@pytest.mark.parametrize(("dim", "heads", "rows", "n_past", "capacity"), ((64, 2, 64, 300, 1500), (256, 6, 16, 70, 0)))
def test_blocks_and_windows_without_wgmma(
    pack_of_warps: _engine.gpu.Pack, dim: int, heads: int, rows: int, n_past: int, capacity: int, mask: str,
    first_slot: int, window: int, seed: int,
) -> None:  # fmt: skip
    where = (dim, heads, rows, n_past, capacity, mask, first_slot, window, seed)
    test_blocks_and_windows(pack_of_warps, "prefill_16", "F16", *where)


# Kernel, types, head_dim, heads of one KV head, rows, capacity.
SINKS = (
    ("decode_f16_64", ("F16", "F16"), 64, 8, 1, 0),
    ("decode_bf16_128", ("BF16", "BF16"), 128, 2, 5, 1500),
    ("packed_64", ("q8_0", "q8_0"), 64, 8, 1, 1500),
    ("packed_64", ("q8_0", "wht4"), 64, 8, 9, 0),
    ("prefill", ("F16", "F16"), 64, 8, 22, 1500),
    ("prefill", ("F16", "F16"), 64, 8, 150, 0),
    ("prefill", ("BF16", "BF16"), 128, 2, 200, 1500),
    ("packed_64", ("q8_0", "q8_0"), 64, 2, 200, 0),
    ("fp32", ("F32", "F32"), 24, 3, 70, 0),
)


@pytest.mark.first_case
@pytest.mark.parametrize("window", (0, 64, 100))
@pytest.mark.parametrize("n_past", (0, 131))
@pytest.mark.parametrize(("kernel", "types", "dim", "heads", "rows", "capacity"), SINKS)
def test_sinks_and_windows(
    pack: _engine.gpu.Pack, kernel: str, types: tuple[str, str], dim: int, heads: int, rows: int, capacity: int,
    n_past: int, window: int, seed: int,
) -> None:  # fmt: skip
    """Windows hide rows of a long append from each other; a row of a tree has the window of its depth."""
    ops.take_started(pack)
    attention_cases.sinks(
        {"pack": pack}, np.random.default_rng(seed), types, heads, 1, dim, n_past, rows, capacity, window, rows == 22
    )
    started = ops.take_started(pack)
    assert kernel in started[0] and "attention_merge_kernel" in started


@pytest.mark.first_case
@pytest.mark.parametrize("window", (0, 64))
@pytest.mark.parametrize(
    ("kernel", "types", "dim", "rows"),
    (
        ("decode", ("F16", "F16"), 64, 4),
        ("decode_8", ("q8_0", "q8_0"), 64, 4),
        ("prefill", ("F16", "F16"), 256, 150),
        ("prefill", ("q8_0", "wht4"), 128, 70),
        ("fp32", ("F32", "F32"), 24, 70),
        ("", ("F16", "F16"), 512, 70),
    ),
)
def test_images(
    pack: _engine.gpu.Pack, kernel: str, types: tuple[str, str], dim: int, rows: int, window: int, seed: int
) -> None:
    """Rows of an image see the whole image."""
    ops.take_started(pack)
    for n_past in (0, 131):
        attention_cases.images({"pack": pack}, np.random.default_rng(seed), types, 4, 2, dim, n_past, rows, window)
    started = ops.take_started(pack)
    assert kernel in started[0] and "sm90" not in started[0]


@pytest.mark.parametrize("rows", (40, 200))
@pytest.mark.parametrize("window", (64, 100))
def test_sinks_and_windows_without_wgmma(pack_of_warps: _engine.gpu.Pack, rows: int, window: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    attention_cases.sinks({"pack": pack_of_warps}, rng, ("F16", "F16"), 8, 1, 64, 131, rows, 0, window)


def test_biases_of_queries_and_keys(pack: _engine.gpu.Pack, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, heads, kv_heads, dim = 5, 6, 2, 64
    cache = filled(rows, kv_heads, dim, "F16", "F16", rng)
    u, k, v = normal(rng, rows, heads, dim), normal(rng, rows, kv_heads, dim), normal(rng, rows, kv_heads, dim)
    biases = normal(rng, heads, dim), normal(rng, kv_heads, dim), normal(rng, kv_heads, dim)
    cos, sin = normal(rng, rows, dim // 2), normal(rng, rows, dim // 2)
    where = (cos, sin, *cache.pages, 0, 1e-6)
    with_biases = ops.attention_prepare(
        u, k, v, None, None, *where, q_bias=biases[0], k_bias=biases[1], v_bias=biases[2], pack=pack
    )
    added = (x + bias for x, bias in zip((u, k, v), biases, strict=True))
    for got, want in zip(with_biases, ops.attention_prepare(*added, None, None, *where, pack=pack), strict=True):
        assert np.array_equal(got, want)


@pytest.mark.parametrize("n_past", (0, 130, 1150))
@pytest.mark.parametrize(("dtype", "rows"), (("F16", 1), ("F16", 9), ("F16", 40), ("F32", 1), ("F32", 9)))
def test_long_context_is_split(pack: _engine.gpu.Pack, dtype: str, rows: int, n_past: int, seed: int) -> None:
    """The cache's size determines the splits; its fill level determines which splits have visible slots."""
    rng = np.random.default_rng(seed)
    cache = filled(n_past + rows, 1, 64, dtype, dtype, rng, capacity=1200)
    q, gate = normal(rng, rows, 2, 64) * np.float32(3), normal(rng, rows, 2, 64)
    ops.take_started(pack)
    got = compare({"pack": pack}, cache, q, n_past, gate)
    assert "attention_merge_kernel" in ops.take_started(pack)
    assert np.array_equal(got, ops.attention(q, *cache.pages, n_past, 0.125, gate, pack=pack))


@pytest.mark.first_case
@pytest.mark.parametrize(("n_past", "is_tree"), ((0, True), (61, False), (700, True)))
@pytest.mark.parametrize(
    ("dtype", "dim", "rows"), (("F16", 256, 22), ("BF16", 64, 5), ("F32", 96, 9), ("F16", 128, 64))
)
def test_the_merge_rounds(
    pack: _engine.gpu.Pack, dtype: str, dim: int, rows: int, n_past: int, is_tree: bool, seed: int
) -> None:
    """Rounding in the merge gives the same bits as rounding afterwards, also when most splits have no pages."""
    rng = np.random.default_rng(seed)
    cache = filled(n_past + rows, 1, dim, dtype, dtype, rng, capacity=1200)
    q, gate = normal(rng, rows, 3, dim) * np.float32(3), normal(rng, rows, 3, dim)
    parent, masks = random_tree(rows, rng) if is_tree else (None, None)
    plain = compare({"pack": pack}, cache, q, n_past, gate, masks, parent)
    check_rounded(pack, rng, plain, (q, *cache.pages, n_past, dim**-0.5, gate, masks))


@pytest.mark.parametrize(("dtype", "dim"), (*FAST, ("F32", 64)))
@pytest.mark.parametrize(("heads", "rows"), ((2, 70), (1, 130)))
def test_tiles_of_a_chain_that_see_fewer_pages(
    pack: _engine.gpu.Pack, dtype: str, dim: int, heads: int, rows: int, seed: int
) -> None:
    """The first query tiles see fewer pages than the last row: the splits beyond must report that they saw nothing."""
    rng = np.random.default_rng(seed)
    cache = filled(rows, 1, dim, dtype, dtype, rng, capacity=4000)
    compare({"pack": pack}, cache, normal(rng, rows, heads, dim) * np.float32(3), 0, normal(rng, rows, heads, dim))


@pytest.mark.parametrize(("dtype", "rows"), (("F32", 1), ("F32", 20), ("F16", 1), ("F16", 20)))
def test_large_scores(pack: _engine.gpu.Pack, dtype: str, rows: int, seed: int) -> None:
    """One slot gets all the weight, in any position: the running maximum grows late, or never."""
    rng = np.random.default_rng(seed)
    cache = filled(180 + rows, 1, 64, dtype, dtype, rng)
    q, unit = normal(rng, rows, 1, 64) * np.float32(100), np.float32(64**-0.5 * np.log2(np.e))
    for slot in (0, 100, 179):
        q[rows // 2] = cache.k[slot] * np.float32(60)
        # q is exact in the matrix unit's type: rounding it would move scores of 500 by 0.06, and the weights too.
        held = (q * unit).astype(np.float16).astype(np.float32) / unit
        compare({"pack": pack}, cache, held, 180, family="attention_sharp")


@pytest.mark.parametrize(("async_copy", "shared"), ((False, 65536), (True, 101376)))
@pytest.mark.parametrize(("dim", "rows"), ((256, 1), (256, 30), (64, 2)))
def test_rings_of_smaller_chips(
    pack_folder: Path, dim: int, rows: int, async_copy: bool, shared: int, seed: int
) -> None:
    """One, two or three tiles in flight give the same bits."""
    manifest = gpu_packs.manifest_of(pack_folder)
    whole = gpu_packs.load(pack_folder, manifest)
    manifest["capabilities"] |= {"async_copy": async_copy, "shared_block_bytes": shared}
    smaller = gpu_packs.load(pack_folder, manifest)
    rng = np.random.default_rng(seed)
    cache = filled(150 + rows, 1, dim, "F16", "F16", rng)
    q = normal(rng, rows, 2, dim)
    want = ops.attention(q, *cache.pages, 150, 0.1, pack=whole)
    assert np.array_equal(ops.attention(q, *cache.pages, 150, 0.1, pack=smaller), want)


@pytest.mark.parametrize(("k_type", "v_type"), (("F32", "BF16"), ("F16", "F32"), ("BF16", "F16")))
@pytest.mark.parametrize(("rows", "kv_heads", "dim", "n_past"), ((1, 1, 8, 0), (9, 2, 40, 60), (70, 3, 64, 63)))
def test_append(
    pack: _engine.gpu.Pack, k_type: str, v_type: str, rows: int, kv_heads: int, dim: int, n_past: int, seed: int
) -> None:
    """All exponents, subnormals and infinities round to nearest even; the rest of the pages stays unchanged."""
    rng = np.random.default_rng(seed)
    k, v = rng.integers(0, 2**32, (2, rows, kv_heads, dim), np.uint32).view(np.float32)
    for x in (k, v):
        x[np.isnan(x)] = 65520.0
    n_pages = (n_past + rows) // PAGE + 2
    pages = [poisoned(n_pages, kv_heads, dtype, dim) for dtype in (k_type, v_type)]
    table = rng.permutation(n_pages).astype(np.int32)
    got = ops.kv_append(k, v, *pages, k_type, v_type, table, n_past, pack=pack)
    beside = ops.kv_append(k, v, *pages, k_type, v_type, table, n_past)
    for mine, want in zip(got, beside, strict=True):
        assert mine.tobytes() == want.tobytes()


@pytest.mark.parametrize("pairs", ("halves", "adjacent"))
@pytest.mark.parametrize(
    ("rows", "heads", "kv_heads", "dim", "n_pairs", "n_past"),
    ((1, 8, 2, 256, 32, 63), (3, 3, 1, 64, 32, 0), (70, 2, 2, 40, 7, 60), (1, 1, 1, 8, 1, 5)),
)
def test_prepare(
    pack: _engine.gpu.Pack, pairs: str, rows: int, heads: int, kv_heads: int, dim: int, n_pairs: int, n_past: int,
    seed: int,
) -> None:  # fmt: skip
    """With norms; q is interleaved with its gate, which is not read."""
    rng = np.random.default_rng(seed)
    u = np.full((rows, heads, 2 * dim), np.nan, np.float32)
    u[:, :, :dim] = normal(rng, rows, heads, dim)
    k, v = normal(rng, rows, kv_heads, dim), normal(rng, rows, kv_heads, dim)
    w = normal(rng, dim), normal(rng, dim)
    angle = rng.uniform(-9, 9, (rows, n_pairs))
    table = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    n_pages = (n_past + rows) // PAGE + 2
    pages = poisoned(n_pages, kv_heads, "F32", dim), poisoned(n_pages, kv_heads, "F32", dim)
    where = ("F32", "F32", rng.permutation(n_pages).astype(np.int32), n_past)
    got = ops.attention_prepare(u, k, v, *w, *table, *pages, *where, 1e-6, pairs, pack=pack)
    q = ops.rope(ops.rms_norm(np.ascontiguousarray(u[:, :, :dim]), w[0], 1e-6), *table, pairs)
    pages = ops.kv_append(ops.rope(ops.rms_norm(k, w[1], 1e-6), *table, pairs), v, *pages, *where)
    check("attention_prepare", got[0], q, np.abs(q).max(axis=-1, keepdims=True))
    written = got[1]
    assert np.array_equal(np.isnan(written), np.isnan(pages[0])), "nothing else of the pages changes"
    mine, want = (np.nan_to_num(values) for values in (written, pages[0]))
    check("attention_prepare", mine, want, np.abs(want).max())
    assert got[2].tobytes() == pages[1].tobytes()


@pytest.mark.parametrize(("k_type", "v_type"), (("F32", "BF16"), ("F16", "F32"), ("BF16", "F16")))
def test_prepare_without_norms(pack: _engine.gpu.Pack, k_type: str, v_type: str, seed: int) -> None:
    """In place; rotation by 90 degrees moves values and rounds none."""
    rng = np.random.default_rng(seed)
    rows, dim, n_past = 2, 40, 63
    u, k, v = normal(rng, rows, 3, dim), normal(rng, rows, 1, dim), normal(rng, rows, 1, dim)
    turns = rng.integers(0, 4, (rows, dim // 2))
    table = np.array([1, 0, -1, 0], np.float32)[turns], np.array([0, 1, 0, -1], np.float32)[turns]
    pages = [poisoned(3, 1, dtype, dim) for dtype in (k_type, v_type)]
    where = (k_type, v_type, rng.permutation(3).astype(np.int32), n_past)
    got = ops.attention_prepare(u, k, v, None, None, *table, *pages, *where, 1e-6, pack=pack)
    assert np.array_equal(got[0], ops.rope(u, *table))
    beside = ops.kv_append(ops.rope(k, *table), v, *pages, *where)
    assert all(mine.tobytes() == want.tobytes() for mine, want in zip(got[1:], beside, strict=True))


@pytest.mark.parametrize(("rows", "kv_heads", "dim"), ((1, 8, 128), (5, 2, 64), (70, 1, 256)))
def test_prepare_of_keys_and_values_alone(
    pack: _engine.gpu.Pack, rows: int, kv_heads: int, dim: int, seed: int
) -> None:
    """Without queries, as for a draft's committed rows: the same bits as a call with queries."""
    rng = np.random.default_rng(seed)
    u, k, v = normal(rng, rows, 2, dim), normal(rng, rows, kv_heads, dim), normal(rng, rows, kv_heads, dim)
    w = normal(rng, dim), normal(rng, dim)
    angle = rng.uniform(-9, 9, (rows, dim // 2))
    table = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    n_past = 60
    n_pages = (n_past + rows) // PAGE + 2
    pages = [poisoned(n_pages, kv_heads, "F16", dim) for _ in range(2)]
    where = ("F16", "F16", rng.permutation(n_pages).astype(np.int32), n_past)
    for on in ({"pack": pack}, {}):
        whole = ops.attention_prepare(u, k, v, *w, *table, *pages, *where, 1e-6, **on)
        alone = ops.attention_prepare(u[:, :0], k, v, *w, *table, *pages, *where, 1e-6, **on)
        assert alone[0].size == 0
        assert all(a.tobytes() == b.tobytes() for a, b in zip(whole[1:], alone[1:], strict=True))


@pytest.mark.parametrize("rows", (1, 30, 64))
def test_move_keeps_the_accepted_path(pack: _engine.gpu.Pack, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_past = 50  # the tree spans two pages
    cache = filled(n_past + rows, 3, 24, "F16", "F32", rng)
    parent, _ = random_tree(rows, rng)
    paths = [path_to(parent, rows - 1), np.arange(0, rows, 2), np.arange(rows), np.array([], np.int64)]
    for path in paths:
        got = ops.kv_move(*cache.pages, path.astype(np.int32), n_past, pack=pack)
        beside = ops.kv_move(*cache.pages, path.astype(np.int32), n_past)
        for mine, want in zip(got, beside, strict=True):
            assert mine.tobytes() == want.tobytes()


def test_what_is_refused(pack: _engine.gpu.Pack) -> None:
    rng = np.random.default_rng(1)
    cache = filled(1, 2, 64, "F16", "F16", rng)
    with pytest.raises(InvalidRequestError, match="heads that do not share KV heads evenly"):
        ops.attention(normal(rng, 1, 3, 64), *cache.pages, 0, 1.0, pack=pack)
    with pytest.raises(InvalidRequestError, match="a tree has at most 64 rows"):
        masks = np.ones(65, np.uint64)
        ops.attention(normal(rng, 65, 2, 64), *cache.pages, 0, 1.0, None, masks, pack=pack)
    with pytest.raises(InvalidRequestError, match="head_dim must be a multiple of 8 up to 512"):
        pages = np.zeros((1, 1, PAGE, 20), np.uint16)
        ops.attention(normal(rng, 1, 1, 20), pages, pages, "F16", "F16", np.zeros(1, np.int32), 0, 1.0, pack=pack)


def test_timing_counts_what_moves(pack: _engine.gpu.Pack) -> None:
    """One row over 101 slots: 4 heads of queries and of results, 2 of keys and of values."""
    pages, table = np.zeros((4, 2, PAGE, 64), np.uint16), np.arange(4, dtype=np.int32)
    fields = {"q": np.ones((1, 4, 64), np.float32), "n_past": 100, "scale": 1 / 64, "first_slot": 0, "window": 0}
    cache = {"k_pages": pages, "v_pages": pages.copy(), "k_type": "F16", "v_type": "F16", "page_table": table}
    cache |= {"head_dim": 64, "key_tail": 0}
    timed = _kernels.ops.time([("attention", [fields | cache], [])], pack, sets=2, replays=1, tries=1)
    assert timed["seconds"] > 0 and "attention_decode_f16_64_kernel" in timed["launches"][0]
    assert timed["bytes"] == 101 * 2 * 2 * 64 * 2 + 2 * 4 * 64 * 4
    assert timed["flops"] == 4 * 4 * 64 * 101
