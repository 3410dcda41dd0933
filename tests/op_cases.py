"""Tests of the ops on rows, wherever the fixture `on` says: with an instruction set of the CPU (isa) or on a device
(pack). Results are compared with fp64; a device's also with the CPU's. The self-test runs the same shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gpu_packs import F16_ONLY
from grow_tree_data import SCORES, SHAPES, check_tree
from lucebox.selftest import ops, shapes
from lucebox.selftest.vision import heads_of, image_of
from numpy.typing import NDArray
from previous_row_appends import appends
from reference import activations as activations_reference
from reference import block_conv as block_conv_reference
from reference import experts as experts_reference
from reference import linear as linear_reference
from reference import rms_norm as norm_reference
from reference import rope as rope_reference
from reference import select_candidates as select_reference
from reference import swiglu as swiglu_reference
from reference import top_tokens as top_tokens_reference
from reference import vision_tower as vision_reference
from reference.linear import FP8
from tolerances import check

F32 = NDArray[np.float32]
On = dict[str, Any]


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.normal(size=shape).astype(np.float32)


def _check(
    family: str,
    on: On,
    op: Callable[..., F32],
    reference: Callable[..., Any],
    *arguments: Any,
    scale: NDArray[np.float64] | None = None,
) -> F32:
    got = op(*arguments, **on)
    check(family, got, reference(*arguments), scale)
    if "pack" in on:
        check(family, got, op(*arguments), scale)
    return got


@pytest.mark.parametrize("shape", shapes.NORMS)
def test_rms_norm(on: On, shape: tuple[int, int, int], seed: int) -> None:
    rng, (rows, heads, dim) = np.random.default_rng(seed), shape
    x = normal(rng, rows, heads, dim) * 10.0 ** rng.integers(-4, 4, (rows, heads, 1)).astype(np.float32)
    _check("norm", on, ops.rms_norm, norm_reference.rms_norm, x, normal(rng, dim), 1e-6)


@pytest.mark.parametrize("shape", shapes.NORMS)
def test_gated_rms_norm(on: On, shape: tuple[int, int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    o, z = normal(rng, 2, *shape) * np.float32(5)
    _check("norm", on, ops.gated_rms_norm, norm_reference.gated_rms_norm, o, z, normal(rng, shape[2]), 1e-6)


@pytest.mark.parametrize("dim", (24, 33, 256))
def test_rms_norm_reads_heads_at_a_stride(on: On, dim: int, seed: int) -> None:
    """Norm of the query half of [query | gate] heads; the values between the heads are NaN and must not be read."""
    rng = np.random.default_rng(seed)
    fused = np.full((4, 3, 2 * dim + 5), np.nan, np.float32)
    fused[:, :, :dim] = normal(rng, 4, 3, dim)
    _check("norm", on, ops.rms_norm, norm_reference.rms_norm, fused[:, :, :dim], normal(rng, dim), 1e-6)


def test_norm_of_a_row_with_a_nan_is_nan_and_no_other(on: On) -> None:
    x = np.ones((3, 2, 70), np.float32)
    x[1, 0, 69] = np.nan
    y = ops.rms_norm(x, np.ones(70, np.float32), 1e-6, **on)
    assert np.array_equal(np.isnan(y), np.isnan(x).any(axis=2, keepdims=True) & np.ones(70, bool))


@pytest.mark.parametrize("shape", shapes.SWIGLUS)
def test_swiglu(on: On, shape: tuple[int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    _check("norm", on, ops.swiglu, swiglu_reference.swiglu, normal(rng, *shape) * np.float32(10), normal(rng, *shape))


def test_swiglu_at_the_ends(on: On) -> None:
    """Intermediate values do not overflow, and NaN propagates."""
    gate = np.array([[-1000, -200, -1e30, 200, 1000, 0, -0.0, 1e30, np.nan, np.inf]], np.float32)
    got = ops.swiglu(gate, np.ones_like(gate), **on)[0]
    assert np.abs(got[:3]).max() < 1e-30 and got[3:8].tolist() == gate[0, 3:8].tolist()
    assert np.isnan(got[8]) and got[9] == np.inf


@pytest.mark.parametrize("pairs", ("halves", "adjacent"))
@pytest.mark.parametrize("shape", shapes.ROPES)
def test_rope(on: On, pairs: str, shape: tuple[int, int, int, int], seed: int) -> None:
    rng, (rows, heads, dim, n_pairs) = np.random.default_rng(seed), shape
    x, angle = normal(rng, rows, heads, dim), rng.uniform(-9, 9, (rows, n_pairs))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    one, zero = np.ones_like(cos), np.zeros_like(sin)
    unit = np.abs(rope_reference.rope(np.abs(x), one, zero, pairs)) + np.abs(rope_reference.rope(x, zero, one, pairs))
    got = _check("rope", on, ops.rope, rope_reference.rope, x, cos, sin, pairs, scale=unit)
    assert np.array_equal(got[..., 2 * n_pairs :], x[..., 2 * n_pairs :])


def test_rope_table_of_queries(on: On) -> None:
    """Rows grow with their position, in steps; beyond the last step no more."""
    pos = np.stack([np.array([0, 7, 8, 31, 32, 1000], np.int32)] * 3)
    inv_freq = (0.1 ** np.arange(5)).astype(np.float32)
    plain = pos, np.zeros(5, np.uint8), inv_freq, 1.5
    scales = np.array([1, 1.25, 1.5, 2], np.float32)
    for got, want in zip(
        ops.rope_table(*plain, scales, 8, **on), rope_reference.rope_table(*plain[:3], 1.5), strict=True
    ):
        grown = want * scales[[0, 0, 1, 3, 3, 3]].astype(np.float64)[:, None]
        check("rope", got, grown, np.full_like(grown, 3.0))


@pytest.mark.parametrize("dim", [64, 200, 512])
def test_prepare_with_norms_of_values(on: On, dim: int) -> None:
    """Values are normalised, queries have angles of their own; without keys nothing is appended."""
    rng = np.random.default_rng(4)
    rows, n_past = 5, 62
    u, k, v = normal(rng, rows, 6, dim), normal(rng, rows, 2, dim), normal(rng, rows, 2, dim)
    w, ones = rng.uniform(0.5, 1.5, size=(2, dim)).astype(np.float32), np.ones(dim, np.float32)
    cos, sin, q_cos, q_sin = np.cos(normal(rng, 4, rows, dim // 4))
    table = np.array([1, 0], np.int32)
    pages = [np.full((2, 2, 64, dim), np.nan, np.float32) for _ in range(2)]
    where = ("F32", "F32", table, n_past, 1e-6)
    own = {"v_norm": ones, "q_cos": q_cos, "q_sin": q_sin}
    got = ops.attention_prepare(u, k, v, *w, cos, sin, *pages, *where, **own, **on)
    q = rope_reference.rope(norm_reference.rms_norm(u, w[0], 1e-6), q_cos, q_sin, "halves")
    check("attention_prepare", got[0], q, np.abs(q).max(-1, keepdims=True))
    key = rope_reference.rope(norm_reference.rms_norm(k, w[1], 1e-6), cos, sin, "halves")
    for stored, want in ((got[1], key), (got[2], norm_reference.rms_norm(v, ones, 1e-6))):
        slots = stored[table].swapaxes(1, 2).reshape(-1, 2, dim)
        check("attention_prepare", slots[n_past : n_past + rows], want, np.abs(want).max(-1, keepdims=True))
    alone = ops.attention_prepare(u, None, None, *w, cos, sin, *pages, *where, q_cos=q_cos, q_sin=q_sin, **on)
    assert np.array_equal(alone[0], got[0])
    assert all(np.isnan(one).all() for one in alone[1:])


@pytest.mark.parametrize("dtype", (*linear_reference.PLAIN_TYPES, *linear_reference.BLOCK_TYPES, FP8))
@pytest.mark.parametrize("blocks", (1, 3))
def test_embed(on: On, dtype: str, blocks: int, seed: int) -> None:
    values = linear_reference.block_size(dtype)[0]
    dim = blocks * (values if values > 1 else 37)
    table = linear_reference.random_weights(dtype, 11 * dim, np.random.default_rng(seed))
    ids = np.array([10, 0, 3, 3], np.int32)
    got = ops.embed(table, dtype, dim, ids, **on)
    assert np.array_equal(got, linear_reference.decode(table, dtype).reshape(11, dim)[ids])


def test_embed_of_every_exponent(on: On) -> None:
    """All scales of MXFP4, including the two subnormal ones and 2^127."""
    table = np.full((256, 17), 0x71, np.uint8)
    table[:, 0] = np.arange(256)
    ids = np.arange(256, dtype=np.int32)
    got = ops.embed(table.reshape(-1), "MXFP4", 32, ids, **on)
    assert np.array_equal(got, ops.embed(table.reshape(-1), "MXFP4", 32, ids, isa="scalar"))


@pytest.mark.parametrize("way", ("factor", "divisor"))
def test_embed_of_scaled_nvfp4(on: On, way: str, seed: int) -> None:
    """The values of the definition: each row's scale multiplies, or divides, the scales of its blocks."""
    rng, (n, dim) = np.random.default_rng(seed), (11, 192)
    by = rng.uniform(0.1, 10, n).astype(np.float32)
    blocks = linear_reference.random_weights("NVFP4", n * dim, rng)
    table = linear_reference.scaled_nvfp4(blocks, by, by if way == "divisor" else None)
    ids = np.array([10, 0, 3, 3], np.int32)
    got = ops.embed(table, "NVFP4_SCALED", dim, ids, **on)
    assert np.array_equal(got, linear_reference.decode_scaled_nvfp4(table, n)[ids])


@pytest.mark.parametrize("shape", shapes.LAYER_NORMS)
def test_layer_norm(on: On, shape: tuple[int, int], seed: int) -> None:
    rng, dim = np.random.default_rng(seed), shape[1]
    x, w, b = normal(rng, *shape) + np.float32(3), normal(rng, dim), normal(rng, dim)
    expected = vision_reference.layer_norm(x.astype(np.float64), w, b, 1e-6)
    got = ops.layer_norm(x, w, b, 1e-6, **on)
    check("layer_norm", got, expected, np.abs(expected).max(1, keepdims=True))


@pytest.mark.parametrize("is_exact", (0, 1))
def test_bias_gelu(on: On, is_exact: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    y, bias = np.tile(np.linspace(-20, 20, 1000, dtype=np.float32), (3, 1)), normal(rng, 1000)
    gelu = vision_reference.gelu if is_exact else vision_reference.gelu_tanh
    expected = gelu(y.astype(np.float64) + bias)
    check("gelu", ops.bias_gelu(y, bias, is_exact, **on), expected, np.maximum(np.abs(expected), 1))


@pytest.mark.parametrize("shape", shapes.PATCHES)
def test_patches_and_their_positions(on: On, shape: tuple[int, int, int, int], seed: int) -> None:
    """All patches, and those after the first block."""
    rng, (height, columns, patch, merge) = np.random.default_rng(seed), shape
    rgb, level = image_of(rng, height, columns, patch)
    n, table = height * columns, normal(rng, 5, 5, 8)
    row, column = vision_reference.place(np.arange(n), columns, merge)
    of_patches = rgb.reshape(height, patch, columns, patch, 3).transpose(0, 2, 4, 1, 3)[row, column]
    expected = np.stack([level[channel][of_patches[:, channel]] for channel in range(3)], 1).reshape(n, -1)
    added = vision_reference.bilinear(table.astype(np.float64), row, column, height, columns)
    for first in (0, merge * merge):
        got = ops.read_patches(rgb, level, patch, merge, height, columns, first, n - first, **on)
        assert np.array_equal(got, expected[first:])
        y = normal(rng, n - first, 8)
        got = ops.add_positions(y, table, height, columns, merge, first, **on)
        check("layer_norm", got, y + added[first:], np.full_like(y, 4))


@pytest.mark.parametrize("dtype", ("F32", "F16"))
@pytest.mark.parametrize("shape", shapes.VISION_HEADS)
def test_heads_of_patches(on: On, dtype: str, shape: tuple[int, int, int, int], seed: int) -> None:
    rng, (rows, heads, dim, padded) = np.random.default_rng(seed), shape
    arguments = heads_of(rng, *shape, dtype)
    x, bias, cos, sin = (np.asarray(one, np.float64) for one in arguments[:4])
    q, k, v = (x + bias).transpose(1, 0, 2, 3)
    q, k = (rope_reference.rope(one, cos, sin, "halves") for one in (q, k))
    got_q, *pages = ops.split_heads(*arguments, **on)
    assert (got_q[..., dim:] == 0).all()
    check("rope", got_q[..., :dim], q.transpose(1, 0, 2), 10)
    for page, expected in zip(pages, (k, v), strict=True):
        values = page if dtype == "F32" else page.view(np.float16)
        slots = values.transpose(0, 2, 1, 3).reshape(-1, heads, padded)
        assert (slots[:60] == 0).all() and (slots[60 + rows :] == 0).all() and (slots[..., dim:] == 0).all()
        check("rope" if dtype == "F32" else "f16_store", slots[60 : 60 + rows, :, :dim], expected, 10)
    merged = ops.merge_heads(got_q, dim, **on)
    assert np.array_equal(merged, got_q[..., :dim].transpose(1, 0, 2))


@pytest.mark.parametrize("dtype", ("F32", "F16"))
@pytest.mark.parametrize("shape", [shape for shape in shapes.VISION_HEADS if shape[2] % 8 == 0])
def test_heads_rotated_by_axis(on: On, dtype: str, shape: tuple[int, int, int, int], seed: int) -> None:
    """Each half of a head has its own pairs; q, k and v are one after another, and have no biases."""
    rng, (rows, heads, dim, _) = np.random.default_rng(seed), shape
    x, _, cos, sin, *rest = heads_of(rng, *shape, dtype)
    parts = np.ascontiguousarray(np.asarray(x).transpose(1, 0, 2, 3))
    got_q, *pages = ops.split_heads(parts.transpose(1, 0, 2, 3), None, cos, sin, *rest, 1, **on)

    def rotated(values: NDArray[np.float64]) -> NDArray[np.float64]:
        halves = zip(
            *(np.split(one, 2, -1) for one in (values, np.asarray(cos, np.float64), np.asarray(sin, np.float64))),
            strict=True,
        )
        return np.concatenate([rope_reference.rope(*half, "halves") for half in halves], -1)

    q, k, v = parts.astype(np.float64)
    check("rope", got_q[..., :dim], rotated(q).transpose(1, 0, 2), 10)
    for page, expected in zip(pages, (rotated(k), v), strict=True):
        values = page if dtype == "F32" else page.view(np.float16)
        slots = values.transpose(0, 2, 1, 3).reshape(-1, heads, values.shape[-1])
        check("rope" if dtype == "F32" else "f16_store", slots[60 : 60 + rows, :, :dim], expected, 10)


@pytest.mark.parametrize("shape", shapes.PATCHES)
def test_positions_by_axis(on: On, shape: tuple[int, int, int, int], seed: int) -> None:
    rng, (height, columns, _, merge) = np.random.default_rng(seed), shape
    n, table = height * columns, normal(rng, 2, 9, 12)
    row, column = vision_reference.place(np.arange(n), columns, merge)
    added = table[0, column].astype(np.float64) + table[1, row]
    for first in (0, merge * merge):
        y = normal(rng, n - first, 12)
        got = ops.add_axis_positions(y, table, columns, merge, first, **on)
        check("layer_norm", got, y + added[first:], np.full_like(y, 4))


@pytest.mark.parametrize("shape", shapes.POOLS)
def test_pooled_patches(on: On, shape: tuple[int, int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, bias, scale = normal(rng, *shape), normal(rng, shape[2]), normal(rng, shape[2])
    mean = x.astype(np.float64).mean(1) * float(np.float32(3.7))
    unit = np.full_like(mean, 10)
    check("layer_norm", ops.pool_patches(x, 3.7, **on), mean, unit)
    check("layer_norm", ops.pool_patches(x, 3.7, bias, scale, **on), (mean - bias) * scale, unit)


@pytest.mark.parametrize("shape", shapes.LAYER_NORMS)
def test_clamp(on: On, shape: tuple[int, int], seed: int) -> None:
    x = normal(np.random.default_rng(seed), *shape)
    assert np.array_equal(ops.clamp(x, -0.5, 1.25, **on), np.clip(x, np.float32(-0.5), np.float32(1.25)))
    assert np.array_equal(ops.clamp(x, -np.inf, np.inf, **on), x)


@pytest.mark.parametrize("shape", shapes.COPIES)
def test_copy_rows(on: On, shape: tuple[int, ...], seed: int) -> None:
    """The other columns stay unchanged (the binding checks it)."""
    rng, (rows, dim, column, width) = np.random.default_rng(seed), shape
    x, y = normal(rng, rows, dim), normal(rng, rows, width)
    got = ops.copy_rows(x, y, column, **on)
    y[:, column : column + dim] = x
    assert np.array_equal(got, y)


@pytest.mark.parametrize("shape", shapes.RINGS)
def test_copies_into_a_ring(on: On, shape: tuple[int, ...], seed: int) -> None:
    rng, (rows, dim, y_rows, first, column, width) = np.random.default_rng(seed), shape
    x, y = normal(rng, rows, dim), normal(rng, y_rows, width)
    got = ops.copy_rows(x, y, column, first, **on)
    y[(first + np.arange(rows)) % y_rows, column : column + dim] = x
    assert np.array_equal(got, y)


@pytest.mark.parametrize("dim", (1, 31, 32, 100))
def test_previous_row(on: On, dim: int, seed: int) -> None:
    appends(np.random.default_rng(seed), dim, **on)


@pytest.mark.parametrize("n", (0, 3))
def test_previous_row_folds_alone(on: On, n: int, seed: int) -> None:
    """An append of no rows moves the last accepted row into the history and changes nothing else."""
    rng = np.random.default_rng(seed)
    history, pending = normal(rng, 40), normal(rng, 64, 40)
    path = np.array([0, 4, 9][:n], np.int32)
    _, after, still = ops.previous_row(np.zeros((0, 40), np.float32), history, pending, path, **on)
    assert np.array_equal(after, pending[9] if n else history) and np.array_equal(still, pending)


@pytest.mark.parametrize(("scale", "softcap"), ((1.0, 0.0), (0.25, 0.0), (1.0, 30.0), (0.7, 5.0)))
@pytest.mark.parametrize("k", (1, 2, 8))
@pytest.mark.parametrize("shape", shapes.TOP_TOKENS)
def test_top_tokens(on: On, shape: tuple[int, int], k: int, scale: float, softcap: float, seed: int) -> None:
    logits = normal(np.random.default_rng(seed), *shape) * np.float32(9)
    ids, logprobs = ops.top_tokens(logits, k, scale, softcap, **on)
    want_ids, want = top_tokens_reference.top_tokens(logits, k, scale, softcap)
    assert np.array_equal(ids, want_ids)
    # A log probability near 0 is the difference of numbers of this size, so errors are relative to it.
    size = np.abs(top_tokens_reference.scaled(logits, scale, softcap)).max() + 1
    check("logprob", logprobs - size, want - size)


@pytest.mark.parametrize("k", (1, 3, 8))
@pytest.mark.parametrize("vocab", (8, 1028, 5001))
def test_wherever_the_likeliest_are(on: On, vocab: int, k: int, seed: int) -> None:
    """All in one thread's parts, in neighbours, at the ends, in order, or tied: ties go to the lower id."""
    rng = np.random.default_rng(seed)
    rows = normal(rng, 8, vocab)
    rows[0, :: max(1, min(1024, vocab // 2))] += 50
    rows[1, vocab // 2 : vocab // 2 + 8] += 50
    rows[2, [0, -1]] += 50
    rows[3], rows[4] = np.arange(vocab), -np.arange(vocab)
    rows[5], rows[6], rows[7] = 0, rng.integers(-2, 3, vocab), np.tile([0.0, -0.0], vocab)[:vocab]
    ids, logprobs = ops.top_tokens(rows, k, **on)
    want_ids, want = top_tokens_reference.top_tokens(rows, k)
    assert np.array_equal(ids, want_ids)
    size = np.abs(rows).max(axis=1, keepdims=True) + 1
    check("logprob", logprobs - size, want - size)


@pytest.mark.parametrize("vocab", (100, 4099))
def test_top_tokens_of_rows_without_numbers(on: On, vocab: int, seed: int) -> None:
    """NaN comes last and has every log probability of its row NaN; -infinity is a probability of 0."""
    logits = normal(np.random.default_rng(seed), 5, vocab)
    logits[0, 3], logits[1, -2], logits[2, : vocab - 3], logits[3] = np.nan, np.inf, -np.inf, np.nan
    for softcap in (0.0, 8.0):
        ids, logprobs = ops.top_tokens(logits, 8, 1.0, softcap, **on)
        finite = np.where(np.isnan(logits), -np.inf, logits)
        if softcap == 0:
            assert np.array_equal(ids[:3], np.argsort(-finite[:3], axis=1, kind="stable")[:, :8])
            assert (logprobs[2, 3:] == -np.inf).all()
        assert ids[3].tolist() == list(range(8)) and np.isfinite(logprobs[2, :3]).all()
        assert np.isnan(logprobs[[0, 3]]).all() and np.isfinite(logprobs[4]).all()
        beside_ids, beside = ops.top_tokens(logits, 8, 1.0, softcap)
        assert np.array_equal(ids, beside_ids) and np.array_equal(np.isnan(logprobs), np.isnan(beside))


@pytest.mark.parametrize("adds", (False, True))
@pytest.mark.parametrize("shape", shapes.BLOCK_CONVS)
def test_block_conv(on: On, shape: tuple[int, int, int, int], adds: bool, seed: int) -> None:
    """The kernels are the second of two interleaved halves; the first is NaN and must not be read."""
    rng, (rows, taps, dim, group) = np.random.default_rng(seed), shape
    x, base = normal(rng, rows, dim), normal(rng, taps, dim)
    both = np.full((rows, 2, taps, dim // group), np.nan, np.float32)
    both[:, 1] = normal(rng, rows, taps, dim // group)
    add = normal(rng, rows, dim) if adds else None
    size = block_conv_reference.block_conv(*(np.abs(a) for a in (x, base, both[:, 1])), group,
                                           None if add is None else np.abs(add))  # fmt: skip
    _check("linear", on, ops.block_conv, block_conv_reference.block_conv, x, base, both[:, 1], group, add, scale=size)


@pytest.mark.parametrize("dtype", ("F32", "F16", "BF16", "Q8_0", "Q4_K"))
@pytest.mark.parametrize("shape", shapes.SELECTIONS)
def test_select_candidates(on: On, dtype: str, shape: tuple[int, int, int], seed: int) -> None:
    """A device may swap candidates with nearly equal scores, and all later rows may differ then. So only the rows
    before the first uncertain order are compared."""
    rng, (rows, k, blocks) = np.random.default_rng(seed), shape
    values = linear_reference.block_size(dtype)[0]
    rank, vocab = blocks * (values if values > 1 else 37), 50
    before, after = (linear_reference.random_weights(dtype, vocab * rank, rng) for _ in range(2))
    tables = [linear_reference.decode(table, dtype).reshape(vocab, rank) for table in (before, after)]
    hidden = normal(rng, rows, rank)
    ids = np.array([rng.permutation(vocab)[:k] for _ in range(rows)], np.int32)
    logprobs = -np.sort(rng.exponential(2, size=(rows, k)), axis=1).astype(np.float32)
    want_ids, want, size = select_reference.select_candidates(hidden, *tables, 7, ids, logprobs)
    close = np.flatnonzero(-np.diff(want, axis=1).max(axis=1) < 1e-4 * size[:, 0]) if k > 1 else np.zeros(0)
    n = int(close[0]) if close.size else rows
    got_ids, got = ops.select_candidates(hidden, before, after, dtype, 7, ids, logprobs, **on)
    assert np.array_equal(got_ids[:n], want_ids[:n])
    check("linear", got[:n], want[:n], size[:n] + 1)


def test_equal_scores_stay_in_order(on: On) -> None:
    zeros = np.zeros(50 * 32, np.float32).view(np.uint8)
    ids, logprobs = np.array([[9, 3, 5], [7, 1, 2]], np.int32), np.full((2, 3), -1.5, np.float32)
    got_ids, got = ops.select_candidates(np.ones((2, 32), np.float32), zeros, zeros, "F32", 0, ids, logprobs, **on)
    assert np.array_equal(got_ids, ids)
    check("linear", got, np.full((2, 3), -np.log(3.0)))


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("shape", SHAPES)
def test_grow_tree(on: On, shape: tuple[int, ...], scores: str, seed: int) -> None:
    check_tree(np.random.default_rng(seed), scores, shape, on)


@pytest.mark.parametrize("is_normalized", [1, 0])
@pytest.mark.parametrize("shape", shapes.ROUTES)
def test_route_experts(on: On, shape: tuple[int, int, int], is_normalized: int, seed: int) -> None:
    """Integers as logits: many ties, which go to the lower index."""
    rows, n, k = shape
    rng = np.random.default_rng(seed)
    for logits in (normal(rng, rows, n) * np.float32(4), rng.integers(-3, 3, (rows, n)).astype(np.float32)):
        experts, weights = ops.route_experts(logits, k, is_normalized, **on)
        want_experts, want = experts_reference.route(logits, k, is_normalized == 1)
        assert np.array_equal(experts, want_experts)
        check("route", weights, want, np.ones_like(want))


def test_a_nan_logit_ranks_last_and_spoils_the_weights(on: On) -> None:
    logits = np.array([[1, np.nan, -np.inf, 2], [1, -0.0, 3, 0]], np.float32)
    experts, weights = ops.route_experts(logits, 4, 1, **on)
    assert experts.tolist() == [[3, 0, 2, 1], [2, 0, 1, 3]]
    assert np.isnan(weights[0]).all() and abs(weights[1].sum() - 1) < 1e-6


def test_a_router_with_a_bias(on: On, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits, bias = normal(rng, 9, 33), normal(rng, 33)
    experts, weights = ops.route_experts(logits, 4, 1, bias, **on)
    want_experts, want = experts_reference.route(logits + bias, 4, True)
    assert np.array_equal(experts, want_experts)
    check("route", weights, want, np.ones_like(want))


def test_a_router_with_scales_of_its_experts(on: On, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits, scale = normal(rng, 9, 33), normal(rng, 33)
    experts, weights = ops.route_experts(logits, 4, 1, None, scale, **on)
    want_experts, want = experts_reference.route(logits, 4, True, scale)
    assert np.array_equal(experts, want_experts)
    check("route", weights, want, np.abs(scale[experts]))


@pytest.mark.parametrize("shape", shapes.BIASES)
def test_add_bias(on: On, shape: tuple[int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    y, bias = normal(rng, *shape), normal(rng, shape[1])
    assert np.array_equal(ops.add_bias(y, bias, **on), y + bias)


@pytest.mark.parametrize("shape", shapes.SWIGLUS)
def test_geglu(on: On, shape: tuple[int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    gate, wide = normal(rng, *shape) * 3, normal(rng, shape[0], 3 * shape[1])
    up = wide[:, shape[1] : 2 * shape[1]]  # rows at a stride
    _check("norm", on, ops.geglu, activations_reference.geglu, gate, up, scale=np.abs(gate * up).astype(np.float64))


@pytest.mark.parametrize("shape", shapes.SWIGLUS)
def test_add_norm(on: On, shape: tuple[int, int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, z, w = normal(rng, *shape), normal(rng, *shape), normal(rng, shape[1])
    want = activations_reference.add_norm(x, z, w, 0.03, 0.7)
    unit = np.abs(want) + np.abs(x)
    _check("norm", on, ops.add_norm, activations_reference.add_norm, x, z, w, 0.03, 0.7, scale=unit)


@pytest.mark.parametrize("shape", shapes.BIASES)
def test_soft_cap(on: On, shape: tuple[int, int], seed: int) -> None:
    x = normal(np.random.default_rng(seed), *shape) * 40
    x.flat[0] = 35  # the error is one of the cap, and all values may be far below it
    unit = np.full(shape, 30.0)
    _check("norm", on, ops.soft_cap, activations_reference.soft_cap, x, 30.0, scale=unit)


def _mixture(
    dtypes: tuple[str, str, str],
    shape: tuple[int, ...],
    act: str,
    activations: str,
    halves: dict[str, str],
    rng: np.random.Generator,
) -> tuple[experts_reference.Experts, tuple[Any, ...], tuple[Any, ...], Any]:
    """Experts, (x, experts, weights), (shared, shared_gate, add) and what mix() makes of them. Clamped ones have biases
    and no shared expert."""
    rows, k, n, dim, ffn, odd = shape
    values = max(linear_reference.block_size(dtype)[0] for dtype in dtypes)
    dim, ffn = (b * (values if values > 1 else 32) + (odd if values == 1 else 0) for b in (dim, ffn))
    gate, up, down = (linear_reference.random_weights(dtype, n * dim * ffn, rng).reshape(n, -1) for dtype in dtypes)
    own = experts_reference.Experts((gate, up, down), dtypes, ffn)
    is_clamped = act == "clamped"
    if is_clamped:
        own = replace(own, biases=(normal(rng, n, ffn), normal(rng, n, ffn), normal(rng, n, dim)), limit=0.75)
    own = replace(own, is_gelu=act == "gelu")
    experts = np.array([rng.permutation(n)[:k] for _ in range(rows)], np.int32)
    around: tuple[Any, ...] = (None, None, normal(rng, rows, dim))
    if not is_clamped:
        around = (normal(rng, rows, dim), normal(rng, rows), normal(rng, rows, dim))
    size = np.float32(1 / np.sqrt(dim * np.square(own.values[0]).mean()))  # products of about 1
    x, weights, left = np.empty((rows, dim), np.float32), normal(rng, rows, k), np.arange(rows)
    while left.size:  # no code of act() may depend on the last bits of a sum: other x for the rows with such codes
        x[left] = normal(rng, left.size, dim) * size
        terms = (None if one is None else one[left] for one in around)
        margins = experts_reference.mix(own, x[left], experts[left], weights[left], *terms, activations, halves)[2]
        left = left[margins <= 1e-4]
    chosen = x, experts, weights
    return own, chosen, around, experts_reference.mix(own, *chosen, *around, activations, halves)


def _halves(on: On, dtypes: tuple[str, str, str], rows: int, activations: str) -> dict[str, str]:
    """The types of weights that a device multiplies as 16-bit numbers, because it groups the choices of many rows; on
    the CPU, FP8, whose x it does not round."""
    if "pack" not in on:
        return {FP8: "F32"} if FP8 in dtypes else {}
    is_grouped = rows >= 17 and dtypes[0] == dtypes[1]
    if not is_grouped or (activations == "f32" and not set(dtypes) <= {"F32", "F16", "BF16"}):
        return {}
    wide = "F16" if on["pack"].target in F16_ONLY else "BF16"
    return {dtype: "F16" if dtype == "F16" else wide for dtype in {"F16", "BF16", FP8} & set(dtypes)}


def _mixed(on: On, own: experts_reference.Experts, chosen: Any, around: Any, is_joined: bool, activations: str) -> F32:
    gate, up, down = own.matrices
    n = len(gate)
    both = np.concatenate([gate, up], axis=1) if is_joined else gate
    return ops.mix_experts(both.reshape(-1), None if is_joined else up.reshape(-1), down.reshape(-1), own.types, n,
                           own.ffn, *chosen, *around, own.biases, own.limit, activations,
                           is_gelu=own.is_gelu, **on)  # fmt: skip


def _check_mixture(
    on: On, dtypes: tuple[str, str, str], shape: tuple[int, ...], act: str, activations: str, seed: int
) -> None:
    halves = _halves(on, dtypes, shape[0], activations)
    rng = np.random.default_rng(seed)
    own, chosen, around, (want, scale, _) = _mixture(dtypes, shape, act, activations, halves, rng)
    got = _mixed(on, own, chosen, around, act != "silu" and dtypes[0] == dtypes[1], activations)
    is_exact = activations == "int8" or set(dtypes) <= set(linear_reference.PLAIN_TYPES)
    limit = "linear" if is_exact or "pack" not in on else "linear_int16"
    if "pack" in on and halves:
        limit = "matmul_wide"
    check(limit, got, want, scale)


EXPERT_TYPES = "F32 F16 BF16 Q8_0 Q4_0 Q5_0 Q5_1 Q4_K Q5_K Q6_K MXFP4 IQ4_NL IQ4_XS NVFP4"
MODES = [("int8", "silu"), ("int8", "clamped"), ("f32", "clamped"), ("int8", "gelu")]


@pytest.mark.parametrize(("activations", "act"), MODES)
@pytest.mark.parametrize("shape", shapes.MIXTURES)
@pytest.mark.parametrize("dtype", [*EXPERT_TYPES.split(), FP8])
def test_mix_experts(on: On, dtype: str, shape: tuple[int, ...], act: str, activations: str, seed: int) -> None:
    _check_mixture(on, (dtype, dtype, dtype), shape, act, activations, seed)


@pytest.mark.parametrize(("activations", "act"), MODES)
@pytest.mark.parametrize("dtypes", [("Q4_K", "Q5_K", "Q6_K"), ("F16", "Q8_0", "BF16"), ("Q8_0", "F32", "MXFP4")])
def test_experts_of_several_types(on: On, dtypes: tuple[str, str, str], act: str, activations: str, seed: int) -> None:
    _check_mixture(on, dtypes, (5, 3, 7, 1, 1, 0), act, activations, seed)


@pytest.mark.parametrize(("activations", "act"), MODES)
@pytest.mark.parametrize(("rows", "n"), [(9, 7), (22, 2)])  # tiles of 16, of 64
@pytest.mark.parametrize(
    "dtypes",
    [(one, one, other) for one, other in (("Q4_K", "Q6_K"), ("BF16", "Q8_0"), ("Q8_0", "F16"), ("NVFP4", FP8),
                                          (FP8, "BF16"), ("Q4_K", "Q5_0"), ("F32", "NVFP4"))],
)  # fmt: skip
def test_many_rows_of_experts_of_several_types(
    on: On, dtypes: tuple[str, str, str], rows: int, n: int, act: str, activations: str, seed: int
) -> None:
    _check_mixture(on, dtypes, (rows, 2, n, 1, 1, 0), act, activations, seed)
