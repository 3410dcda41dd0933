"""Types of stored keys and values: bytes of pages against an independent encoder, other formats and the theory."""

from __future__ import annotations

from itertools import product

import attention_cases
import gguf
import numpy as np
import pytest
from kv_cache import filled, poisoned
from lucebox import _engine
from lucebox.selftest import ops
from numpy.typing import NDArray
from reference import kv_types
from reference.kv_types import F32, PAGE, TYPES
from tolerances import check
from tree_data import block_masks, path_to, random_tree

ISAS = _engine.available_isas()
KINDS = ("normal", "outliers", "wide", "equal")
GGUF = {name: getattr(gguf.GGMLQuantizationType, name.upper()) for name in ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0")}


def rows_of(kind: str, n: int, dim: int, rng: np.random.Generator) -> F32:
    """[n, dim]: Gaussian, with an outlier in each row, tiny or all of one value."""
    x = rng.normal(size=(n, dim))
    if kind == "outliers":
        x[np.arange(n), rng.integers(dim, size=n)] *= 40
    if kind == "wide":
        x *= 10.0 ** rng.uniform(-6, 3, size=(n, 1))
    if kind == "equal":
        x[:] = rng.normal(size=(n, 1))
        x[0] = 0
    return x.astype(np.float32)


def append(x: F32, kv: str, isa: str = "auto", slot: int = 0) -> NDArray[np.uint8]:
    """A page of one head after the rows x were appended from `slot` on, as bytes [64, slot_bytes]."""
    given = x[:, None], x[:, None]
    pages = [poisoned(1, 1, kv, x.shape[1]) for _ in range(2)]
    table = np.zeros(1, np.int32)
    k_pages, v_pages = ops.kv_append(*given, *pages, kv, kv, table, slot, isa=isa)
    assert k_pages.tobytes() == v_pages.tobytes()
    return k_pages[0, 0].reshape(PAGE, -1).view(np.uint8)


def stored(x: F32, kv: str, isa: str = "auto") -> kv_types.Stored:
    """Codes and scales of the first len(x) slots of a page."""
    page = kv_types.split(append(x, kv, isa), kv, x.shape[1])
    return kv_types.Stored(page.codes[: len(x)], page.scales[: len(x)])


@pytest.mark.parametrize("kv", TYPES)
def test_pages_join_what_they_split(kv: str) -> None:
    """The reference's own planes: random bytes survive."""
    pages = np.random.default_rng(0).integers(256, size=(2, 3, PAGE, kv_types.slot_bytes(kv, 96)), dtype=np.uint8)
    assert kv_types.joined(kv_types.split(pages, kv, 96), kv).tobytes() == pages.tobytes()


@pytest.mark.parametrize("kv", [kv for kv in TYPES if kv not in kv_types.LEVELS])
def test_codes_are_those_of_the_reference(kv: str) -> None:
    for kind, dim in product(KINDS, (32, 96, 256)):
        x = rows_of(kind, 40, dim, np.random.default_rng(dim))
        want = kv_types.encode(x, kv)
        for isa in ISAS:
            got = stored(x, kv, isa)
            assert np.array_equal(got.codes, want.codes), (isa, kind, dim)
            assert got.scales.tobytes() == want.scales.tobytes(), (isa, kind, dim)


@pytest.mark.parametrize("kv", kv_types.LEVELS)
def test_levels_are_the_nearest(kv: str) -> None:
    """As in fp64, but for values within the rounding of fp32 of a decision point, and a unit in f16's last place."""
    points = np.concatenate([-kv_types.decision_points(kv), [0], kv_types.decision_points(kv)])
    for kind, dim in product(KINDS, (32, 96, 128, 192, 256)):
        x = rows_of(kind, 40, dim, np.random.default_rng(dim))
        want = kv_types.encode(x, kv)
        y = kv_types.normalised(x, kv)[0].reshape(x.shape)
        is_clear = np.abs(y[..., None] - points).min(-1) > 2e-6
        assert is_clear.mean() > (0.9 if kind != "equal" else 0.4)
        for isa in ISAS:
            got = stored(x, kv, isa)
            assert np.array_equal(got.codes[is_clear], want.codes[is_clear]), (isa, kind, dim)
            apart = np.abs(got.scales.view(np.uint16).astype(int) - want.scales.view(np.uint16))
            assert apart.max() <= 1 and (apart != 0).mean() < 0.05, (isa, kind, dim)


@pytest.mark.parametrize("kv", GGUF)
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_those_of_gguf(kv: str, kind: str) -> None:
    """Codes and scales of GGUF's quantiser, and the values of its dequantiser. Where two values of opposite sign have
    the largest magnitude, ours takes the positive one and GGUF the first: random values have no such pair."""
    x = rows_of(kind, 40, 96, np.random.default_rng(1))
    quantised = gguf.quantize(x, GGUF[kv])
    got = stored(x, kv)
    values = gguf.dequantize(quantised, GGUF[kv])
    ours = kv_types.decode(got, kv)
    assert np.array_equal(ours.astype(np.float32), values)
    blocks = quantised.reshape(40, 3, -1)
    n_scales = 2 if kv in kv_types.MINIMA else 1
    scales = np.ascontiguousarray(blocks[..., : 2 * n_scales]).view(np.float16)
    assert np.array_equal(got.scales.reshape(40, 3, n_scales), scales)


def test_of_two_largest_magnitudes_the_positive_one_counts() -> None:
    x = np.zeros((1, 32), np.float32)
    x[0, 3], x[0, 20] = -2, 2
    for kv, half in (("q4_0", 8), ("q5_0", 16)):
        got = stored(x, kv)
        assert got.scales[0, 0] == np.float16(-2 / half)
        assert got.codes[0, 20] == 0 and got.codes[0, 3] == 2 * half - 1


def test_vector_of_tq3_0() -> None:
    """Recorded from the format's users: x_j = sin(j + 1)."""
    x = np.sin(np.arange(1, 129)).astype(np.float32)[None]
    blocks = [
        "09486641addd7af8dc9e50e5304f",
        "09484013712831478aac8b974b9c",
        "09485546773d662c57295f00988e",
        "0948d2a91fb52b1e7b13671acee2",
    ]
    got = stored(x, "tq3_0")
    assert np.array_equal(got.scales.view(np.uint16), [[0x4809] * 4])
    for i, text in enumerate(blocks):
        block = np.frombuffer(bytes.fromhex(text), np.uint8)
        low = (block[2:10, None] >> np.arange(0, 8, 2) & 3).ravel()
        high = (block[10:14, None] >> np.arange(8) & 1).ravel()
        index = (low | high << 2).astype(int)  # ascending levels: 0 is the most negative
        codes = got.codes[0, 32 * i : 32 * i + 32].astype(int)
        assert np.array_equal(np.where(codes < 4, 4 + codes, 7 - codes), index)


def test_every_fp8_number_survives(isa: str) -> None:
    numbers = kv_types.fp8_values()
    x = numbers.astype(np.float32).reshape(8, 32)
    x[np.isnan(x)] = 0
    assert np.array_equal(kv_types.decode(stored(x, "fp8", isa), "fp8"), x)
    between = (numbers[:126] + numbers[1:127]) / 2  # ties go to the even code
    ties = np.concatenate([between, -between, [448.1, 1e9, np.inf, -np.inf]]).astype(np.float32).reshape(8, 32)
    codes = stored(ties, "fp8", isa).codes.ravel()
    even = np.arange(126) + np.arange(126) % 2
    assert np.array_equal(codes[:252], np.concatenate([even, even + 128]))
    assert np.array_equal(codes[252:], [0x7E, 0x7E, 0x7E, 0xFE])


# Mean squared error in units of the variance, of Lloyd-Max levels for Gaussian values.
ERRORS = {"tq3_0": 0.034, "wht3": 0.034, "wht4": 0.0093}


@pytest.mark.parametrize("kv", ERRORS)
@pytest.mark.parametrize("kind", ("normal", "outliers"))
@pytest.mark.parametrize("dim", (64, 128, 256))
def test_errors_and_lengths_of_rotated_types(kv: str, kind: str, dim: int) -> None:
    """Near the theory for Gaussian values, whatever outliers they had; lengths are kept but for f16's rounding."""
    x = rows_of(kind, 64, dim, np.random.default_rng(7))
    got = kv_types.unrotate(kv_types.decode(stored(x, kv), kv))
    groups = (64, -1, kv_types.rotated_group(dim))
    lengths = [np.linalg.norm(np.asarray(values, np.float64).reshape(groups), axis=-1) for values in (got, x)]
    assert np.abs(lengths[0] / lengths[1] - 1).max() < 2**-10
    error = ((got - x) ** 2).sum() / (x.astype(np.float64) ** 2).sum()
    if kind == "normal":
        assert ERRORS[kv] * 0.9 < error < ERRORS[kv] * 1.1
    else:
        assert error < ERRORS[kv] * 1.6


@pytest.mark.parametrize("kv", TYPES)
@pytest.mark.parametrize("dim", (32, 96, 128))
def test_a_row_has_the_same_bytes_in_every_append(kv: str, dim: int) -> None:
    """One slot, or several up to the end of a page; neighbouring slots are NaN and keep their bytes."""
    x = rows_of("normal", 64, dim, np.random.default_rng(dim))
    for isa, slot in product(ISAS, (0, 1, 40, 63)):
        together = kv_types.split(append(x, kv, isa), kv, dim)
        page = kv_types.split(append(x[slot : slot + 1], kv, isa, slot), kv, dim)
        assert np.array_equal(page.codes[slot], together.codes[slot])
        assert page.scales[slot].tobytes() == together.scales[slot].tobytes()
        others = np.arange(64) != slot
        assert np.all(page.codes[others] == 2 ** kv_types.bits_of(kv)[0] - 1)
        assert set(page.scales[others].tobytes()) <= {0xFF}


@pytest.mark.parametrize("kv", TYPES)
def test_instruction_sets_store_the_same_bytes(kv: str) -> None:
    x = rows_of("wide", 64, 192, np.random.default_rng(3))
    (_,) = {append(x, kv, isa).tobytes() for isa in ISAS}


@pytest.mark.parametrize("k_type", TYPES)
def test_attention_of_every_pair(k_type: str) -> None:
    """An odd number of slots over the end of a page, heads of 96 values, a gate. Each instruction set takes each type
    as K and as V; the best one takes every pair."""
    for isa, v_type in (*(("auto", v) for v in TYPES), *((isa, TYPES[TYPES.index(k_type) - 5]) for isa in ISAS)):
        rng = np.random.default_rng(102)
        cache = filled(73, 2, 96, k_type, v_type, rng, isa=isa)
        q, gate = attention_cases.normal(rng, 2, 6, 4, 96)
        attention_cases.compare({"isa": isa}, cache, cache.queries(3 * q), 67, gate)


PAIRS = (("q8_0", "q8_0"), ("fp8", "q5_1"), ("q5_0", "q4_1"), ("q4_0", "tq3_0"), ("tq3_0", "wht4"), ("wht4", "wht3"))


@pytest.mark.parametrize(("k_type", "v_type"), (*PAIRS, ("wht3", "f16"), ("bf16", "q4_0")))
def test_attention_of_chains(isa: str, k_type: str, v_type: str) -> None:
    for dim, n_past, rows in (
        (32, 40, 70), (64, 0, 1), (96, 200, 9), (128, 63, 1), (192, 64, 2), (256, 40, 70)
    ):  # fmt: skip
        attention_cases.chain(
            {"isa": isa}, np.random.default_rng(dim + rows), (k_type, v_type), 3, 1, dim, n_past, rows
        )


@pytest.mark.parametrize(("k_type", "v_type"), PAIRS)
def test_attention_of_trees_and_windows(isa: str, k_type: str, v_type: str) -> None:
    rng = np.random.default_rng(2)
    cache = filled(137, 2, 64, k_type, v_type, rng, isa=isa)
    for words in (random_tree(22, rng)[1], block_masks(22, "all", rng), block_masks(22, "random", rng)):
        for hidden in ({}, {"first_slot": 3, "window": 40}):
            q = cache.queries(attention_cases.normal(rng, 22, 4, 64) * np.float32(3))
            attention_cases.compare({"isa": isa}, cache, q, 115, None, words, **hidden)


@pytest.mark.first_case
@pytest.mark.parametrize("kv", TYPES)
def test_a_row_attends_with_the_same_bits_alone(isa: str, kv: str) -> None:
    """A row of a tree, of a long chain and alone: over the ends of pages, with the values that the cache stores."""
    rng = np.random.default_rng(5)
    n_past, rows, heads, dim = 120, 40, 6, 96
    cache = filled(n_past + rows, 2, dim, kv, kv, rng, isa=isa)
    q = rng.normal(size=(n_past + rows, heads, dim)).astype(np.float32)
    parent, words = random_tree(rows, rng)
    tree = ops.attention(q[n_past:], *cache.pages, n_past, 0.1, parent=parent, ancestors=words, isa=isa)
    for leaf in (rows - 1, rows // 2):
        path = path_to(parent, leaf)
        pages = ops.kv_append(cache.k[n_past:][path], cache.v[n_past:][path], *cache.pages, n_past, isa=isa)
        alone = ops.attention(q[None, n_past + leaf], *pages, *cache.pages[2:], n_past + len(path) - 1, 0.1, isa=isa)
        assert np.array_equal(alone[0], tree[leaf])
    chain = ops.attention(q, *cache.pages, 0, 0.1, isa=isa)
    for row in (63, 64, 127, n_past + rows - 1):
        alone = ops.attention(q[row : row + 1], *cache.pages, row, 0.1, isa=isa)
        assert np.array_equal(alone[0], chain[row])


@pytest.mark.parametrize("kv", TYPES)
@pytest.mark.parametrize("dim", (32, 96))
def test_move_keeps_the_accepted_path(kv: str, dim: int) -> None:
    """The bytes of every plane, over the end of a page; no other slot changes."""
    rng = np.random.default_rng(5)
    n_past, rows = 50, 30
    cache = filled(n_past + rows, 3, dim, kv, "f16", rng)
    path = path_to(random_tree(rows, rng)[0], rows - 1)
    before = cache.keys
    cache.k_pages, cache.v_pages = ops.kv_move(*cache.pages, path, n_past, head_dim=dim)
    after, want = cache.keys, before.copy()
    want[n_past : n_past + len(path)] = before[n_past:][path]
    assert np.array_equal(after, want)


@pytest.mark.parametrize("kv", TYPES)
def test_prepare_stores_and_rotates(kv: str) -> None:
    """Queries of rotated keys are rotated; the page holds the keys after norm and rope."""
    rng = np.random.default_rng(6)
    rows, heads, kv_heads, dim, n_past = 5, 4, 2, 64, 62
    u, k, v = (rng.normal(size=(rows, n, dim)).astype(np.float32) for n in (heads, kv_heads, kv_heads))
    w = rng.uniform(0.5, 1.5, size=(2, dim)).astype(np.float32)
    cos, sin = np.cos(rng.normal(size=(2, rows, 16))).astype(np.float32)
    table = np.array([1, 0], np.int32)
    pages = [poisoned(2, kv_heads, kv, dim) for _ in range(2)]
    got = ops.attention_prepare(u, k, v, *w, cos, sin, *pages, kv, kv, table, n_past, 1e-6, "halves")
    q, key = (ops.rope(ops.rms_norm(x, g, 1e-6), cos, sin, "halves") for x, g in ((u, w[0]), (k, w[1])))
    want = kv_types.rotate(q) if kv_types.is_rotated(kv) else q
    check("attention_prepare", got[0], want, np.abs(want).max(-1, keepdims=True))
    beside = ops.kv_append(key, v, *pages, kv, kv, table, n_past)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(got[1:], beside, strict=True))
