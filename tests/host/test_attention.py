"""The paged cache and attention over it, against fp64 from the same rounded keys and values."""

from __future__ import annotations

from itertools import product

import attention_cases
import numpy as np
import pytest
from kv_cache import filled, poisoned
from lucebox.selftest import ops
from numpy.typing import NDArray
from reference import attention as reference
from tree_data import path_to, random_tree

F32 = NDArray[np.float32]
PAGE = 64


def bits(x: F32, dtype: str) -> NDArray[np.generic]:
    if dtype == "F32":
        return x
    if dtype == "F16":
        return reference.round_to(x, dtype).astype(np.float16).view(np.uint16)
    return (reference.round_to(x, dtype).view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("k_type", ("F32", "F16", "BF16"))
def test_append_rounds_to_nearest_even(isa: str, k_type: str) -> None:
    rng = np.random.default_rng(3)
    values = rng.integers(0, 2**32, (9, 2, 40), np.uint32).view(np.float32)  # every exponent, subnormals, infinities
    values[np.isnan(values)] = 65520.0
    values[0, 0, :8] = [0.0, -0.0, 65519.99, 65520.0, 2**-25, 2**-24 * 1.5, 2**-14 * (1 - 2**-12), 1 + 2**-11]
    given = poisoned(1, 2, k_type, 40), poisoned(1, 2, k_type, 40)
    written = ops.kv_append(values, values, *given, k_type, k_type, np.zeros(1, np.int32), 0, isa=isa)
    want = bits(values, k_type)
    for pages in written:
        assert np.array_equal(pages[0, :, :9].transpose(1, 0, 2).tobytes(), want.tobytes())
        assert np.array_equal(pages[0, :, 9:].tobytes(), poisoned(1, 2, k_type, 40)[0, :, 9:].tobytes())


@pytest.mark.first_case
@pytest.mark.parametrize("types", (("F32", "F32"), ("F16", "BF16"), ("BF16", "F16")))
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), ((8, 2, 256), (9, 3, 64), (4, 4, 40), (6, 1, 8)))
def test_chain(isa: str, types: tuple[str, str], heads: int, kv_heads: int, dim: int) -> None:
    for n_past, rows in ((0, 1), (5, 1), (63, 1), (64, 2), (130, 15), (0, 65), (70, 130)):
        rng = np.random.default_rng(n_past + rows)
        attention_cases.chain({"isa": isa}, rng, types, heads, kv_heads, dim, n_past, rows)


@pytest.mark.parametrize("rows", (1, 2, 7, 22, 63, 64))
@pytest.mark.parametrize(("dtype", "dim"), (("F16", 64), ("BF16", 128), ("F32", 16)))
def test_tree(isa: str, dtype: str, dim: int, rows: int) -> None:
    attention_cases.tree({"isa": isa}, np.random.default_rng(rows), dtype, dim, rows)


@pytest.mark.parametrize(("dtype", "dim", "key_tail"), (("F16", 512, 128), ("q8_0", 96, 64), ("wht4", 128, 128)))
@pytest.mark.parametrize(("n_past", "rows", "is_tree"), ((0, 1, False), (61, 9, True), (70, 130, False)))
def test_values_in_keys(
    isa: str, dtype: str, dim: int, key_tail: int, n_past: int, rows: int, is_tree: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    attention_cases.in_keys({"isa": isa}, rng, dtype, 6, 2, dim, key_tail, n_past, rows, is_tree=is_tree)


@pytest.mark.parametrize(("dim", "n_pairs", "key_tail"), ((32, 4, 64), (512, 64, 128), (96, 9, 64)))
def test_keys_and_values_apart_give_the_same(isa: str, dim: int, n_pairs: int, key_tail: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    attention_cases.prepared_in_keys({"isa": isa}, rng, "F32", 6, 2, dim, n_pairs, key_tail, 61, 9)


@pytest.mark.first_case
@pytest.mark.parametrize(("n_past", "rows"), ((0, 3), (1, 1), (100, 16), (70, 64), (2500, 5)))
def test_blocks_and_windows(isa: str, n_past: int, rows: int) -> None:
    for mask, (first_slot, window) in product(
        ("chain", "all", "random"), ((1, 0), (0, 1), (0, 40), (7, 65), (0, 2048))
    ):
        rng, hidden = np.random.default_rng(n_past + rows), {"first_slot": first_slot, "window": window}
        attention_cases.block({"isa": isa}, rng, ("F16", "F32"), 4, 2, 32, n_past, rows, 0, mask, **hidden)


@pytest.mark.first_case
@pytest.mark.parametrize(("n_past", "rows"), ((0, 1), (3, 65), (130, 7), (2500, 5), (200, 300)))
@pytest.mark.parametrize("window", (0, 64, 129))
def test_sinks(isa: str, n_past: int, rows: int, window: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for types, dim in ((("F16", "F32"), 40), (("q8_0", "wht4"), 64)):
        attention_cases.sinks({"isa": isa}, rng, types, 6, 2, dim, n_past, rows, 0, window, rows == 7)


@pytest.mark.first_case
@pytest.mark.parametrize(("n_past", "rows"), ((0, 1), (3, 65), (130, 7), (2500, 5), (200, 300)))
@pytest.mark.parametrize("window", (0, 64, 129))
def test_images(isa: str, n_past: int, rows: int, window: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for types, dim in ((("F16", "F32"), 40), (("q8_0", "wht4"), 64)):
        attention_cases.images({"isa": isa}, rng, types, 6, 2, dim, n_past, rows, window)


@pytest.mark.first_case
@pytest.mark.parametrize(("n_past", "rows"), ((0, 64), (61, 9), (1010, 64), (8180, 40)))
def test_a_row_has_the_same_bits_alone(isa: str, n_past: int, rows: int) -> None:
    """Rows of a tree, a short chain and a long chain equal the row computed alone after its path, across page and split
    boundaries."""
    rng = np.random.default_rng(rows)
    heads, dim = 6, 40
    cache = filled(n_past + rows, 2, dim, "F16", "BF16", rng, isa=isa)
    q = rng.normal(size=(rows, heads, dim)).astype(np.float32) * np.float32(3)
    parent, masks = random_tree(rows, rng)
    tree = ops.attention(q, *cache.pages, n_past, 0.2, parent=parent, ancestors=masks, isa=isa)
    for leaf in rng.integers(rows, size=3):
        path = path_to(parent, leaf)
        pages = ops.kv_append(cache.k[n_past:][path], cache.v[n_past:][path], *cache.pages, n_past, isa=isa)
        last = n_past + len(path) - 1
        alone = ops.attention(q[leaf : leaf + 1], *pages, *cache.pages[2:], last, 0.2, isa=isa)
        assert np.array_equal(alone[0], tree[leaf])
    long = max(0, n_past - 100)  # more than 64 rows take other ways to split the work
    queries = np.concatenate([rng.normal(size=(n_past - long, heads, dim)).astype(np.float32), q])
    chain = ops.attention(queries, *cache.pages, long, 0.2, isa=isa)[n_past - long :]
    assert np.array_equal(chain, ops.attention(q, *cache.pages, n_past, 0.2, isa=isa))
    for row in rng.integers(rows, size=3):
        alone = ops.attention(q[row : row + 1], *cache.pages, n_past + row, 0.2, isa=isa)
        assert np.array_equal(alone[0], chain[row])


@pytest.mark.parametrize("rows", (1, 7, 64))
def test_long_context_is_split_and_gated(isa: str, rows: int) -> None:
    """More than one run of slots; the gate is the second half of fused [query | gate] heads."""
    rng = np.random.default_rng(rows)
    n_past, heads, dim = 2500, 4, 32
    cache = filled(n_past + rows, 2, dim, "BF16", "BF16", rng, isa=isa)
    fused = rng.normal(size=(rows, heads, 2 * dim)).astype(np.float32) * np.float32(3)
    q = np.ascontiguousarray(fused[:, :, :dim])
    got = attention_cases.compare({"isa": isa}, cache, q, n_past, fused)
    assert np.array_equal(got, ops.attention(q, *cache.pages, n_past, dim**-0.5, fused[:, :, dim:], isa=isa, threads=2))


def test_large_scores(isa: str) -> None:
    rng = np.random.default_rng(0)
    cache = filled(200, 1, 64, "F32", "F32", rng, isa=isa)
    for rows in (1, 20):
        q = rng.normal(size=(rows, 1, 64)).astype(np.float32) * np.float32(8000)
        attention_cases.compare({"isa": isa}, cache, q, 180, family="attention_sharp")


@pytest.mark.parametrize("rows", (33, 200))
def test_threads_change_no_bit(isa: str, rows: int) -> None:
    rng = np.random.default_rng(rows)
    cache = filled(300 + rows, 2, 64, "F16", "F16", rng, isa=isa)
    q = rng.normal(size=(rows, 4, 64)).astype(np.float32)
    first, second = (ops.attention(q, *cache.pages, 300, 0.125, isa=isa, threads=n) for n in (1, 2))
    assert np.array_equal(first, second)


def test_move_keeps_the_accepted_path() -> None:
    rng = np.random.default_rng(5)
    n_past, rows = 50, 30  # the tree spans two pages
    cache = filled(n_past + rows, 3, 16, "F16", "F32", rng)
    parent, _ = random_tree(rows, rng)
    path = path_to(parent, rows - 1)
    before = [[cache.row(p, n_past + j).copy() for j in path] for p in (cache.k_pages, cache.v_pages)]
    cache.k_pages, cache.v_pages = ops.kv_move(*cache.pages, path, n_past)
    for pages, want in zip((cache.k_pages, cache.v_pages), before, strict=True):
        for j, row in enumerate(want):
            assert np.array_equal(cache.row(pages, n_past + j), row)
