"""Test cases of the ops on rows. Results on the CPU (isa=) or a device (pack=) are compared with fp64; a device's
result also with the CPU's. The self-test runs the same shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from lucebox.selftest import ops
from numpy.typing import NDArray
from reference import block_conv as block_conv_reference
from reference import experts as experts_reference
from reference import linear as linear_reference
from reference import rms_norm as norm_reference
from reference import rope as rope_reference
from reference import select_candidates as select_reference
from reference import swiglu as swiglu_reference
from reference import top_tokens as top_tokens_reference
from tolerances import check

F32 = NDArray[np.float32]


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.normal(size=shape).astype(np.float32)


def _check(
    family: str,
    on: dict[str, Any],
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


def rms_norm(rng: np.random.Generator, rows: int, heads: int, dim: int, **on: Any) -> None:
    x = normal(rng, rows, heads, dim) * 10.0 ** rng.integers(-4, 4, (rows, heads, 1)).astype(np.float32)
    _check("norm", on, ops.rms_norm, norm_reference.rms_norm, x, normal(rng, dim), 1e-6)


def gated_rms_norm(rng: np.random.Generator, rows: int, heads: int, dim: int, **on: Any) -> None:
    o, z = normal(rng, 2, rows, heads, dim) * np.float32(5)
    _check("norm", on, ops.gated_rms_norm, norm_reference.gated_rms_norm, o, z, normal(rng, dim), 1e-6)


def norm_of_strided_heads(rng: np.random.Generator, dim: int, **on: Any) -> None:
    """Norm of the query half of [query | gate] heads; the values between the heads are NaN and must not be read."""
    fused = np.full((4, 3, 2 * dim + 5), np.nan, np.float32)
    fused[:, :, :dim] = normal(rng, 4, 3, dim)
    _check("norm", on, ops.rms_norm, norm_reference.rms_norm, fused[:, :, :dim], normal(rng, dim), 1e-6)


def swiglu(rng: np.random.Generator, rows: int, dim: int, **on: Any) -> None:
    gate, up = normal(rng, rows, dim) * np.float32(10), normal(rng, rows, dim)
    _check("norm", on, ops.swiglu, swiglu_reference.swiglu, gate, up)


def rope(rng: np.random.Generator, rows: int, heads: int, dim: int, n_pairs: int, pairs: str, **on: Any) -> None:
    x, angle = normal(rng, rows, heads, dim), rng.uniform(-9, 9, (rows, n_pairs))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    one, zero = np.ones_like(cos), np.zeros_like(sin)
    unit = np.abs(rope_reference.rope(np.abs(x), one, zero, pairs)) + np.abs(rope_reference.rope(x, zero, one, pairs))
    got = _check("rope", on, ops.rope, rope_reference.rope, x, cos, sin, pairs, scale=unit)
    assert np.array_equal(got[..., 2 * n_pairs :], x[..., 2 * n_pairs :])


def copy_rows(rng: np.random.Generator, rows: int, dim: int, column: int, width: int, **on: Any) -> None:
    x, y = normal(rng, rows, dim), normal(rng, rows, width)
    got = ops.copy_rows(x, y, column, **on)
    y[:, column : column + dim] = x
    assert np.array_equal(got, y)


def copy_into_ring(
    rng: np.random.Generator, rows: int, dim: int, y_rows: int, first: int, column: int, width: int, **on: Any
) -> None:
    x, y = normal(rng, rows, dim), normal(rng, y_rows, width)
    got = ops.copy_rows(x, y, column, first, **on)
    y[(first + np.arange(rows)) % y_rows, column : column + dim] = x
    assert np.array_equal(got, y)


def top_tokens(
    rng: np.random.Generator, rows: int, vocab: int, k: int, scale: float, softcap: float, **on: Any
) -> None:
    logits = normal(rng, rows, vocab) * np.float32(9)
    ids, logprobs = ops.top_tokens(logits, k, scale, softcap, **on)
    want_ids, want = top_tokens_reference.top_tokens(logits, k, scale, softcap)
    assert np.array_equal(ids, want_ids)
    # A log probability near 0 is the difference of numbers of this size, so errors are relative to it.
    size = np.abs(top_tokens_reference.scaled(logits, scale, softcap)).max() + 1
    check("logprob", logprobs - size, want - size)


def block_conv(rng: np.random.Generator, rows: int, taps: int, dim: int, group: int, adds: bool, **on: Any) -> None:
    """The kernels are the second of two interleaved halves; the first is NaN and must not be read."""
    x, base = normal(rng, rows, dim), normal(rng, taps, dim)
    both = np.full((rows, 2, taps, dim // group), np.nan, np.float32)
    both[:, 1] = normal(rng, rows, taps, dim // group)
    add = normal(rng, rows, dim) if adds else None
    size = block_conv_reference.block_conv(*(np.abs(a) for a in (x, base, both[:, 1])), group,
                                           None if add is None else np.abs(add))  # fmt: skip
    _check("linear", on, ops.block_conv, block_conv_reference.block_conv, x, base, both[:, 1], group, add, scale=size)


def select_candidates(rng: np.random.Generator, dtype: str, rows: int, k: int, blocks: int, **on: Any) -> None:
    """A device may swap candidates with nearly equal scores, and all later rows may differ then. So only the rows
    before the first uncertain order are compared."""
    values = linear_reference.block_size(dtype)[0]
    rank, vocab = blocks * (values if values > 1 else 37), 50
    before, after = (linear_reference.random_weights(dtype, vocab * rank, rng) for _ in range(2))
    tables = [linear_reference.decode(table, dtype).reshape(vocab, rank) for table in (before, after)]
    hidden = normal(rng, rows, rank)
    ids = np.array([rng.permutation(vocab)[:k] for _ in range(rows)], np.int32)
    logprobs = -np.sort(rng.exponential(2, size=(rows, k)), axis=1).astype(np.float32)
    want_ids, want, size = select_reference.select_candidates(hidden, *tables, 7, ids, logprobs)
    n = rows
    if "pack" in on and k > 1:
        close = np.flatnonzero(-np.diff(want, axis=1).max(axis=1) < 1e-4 * size[:, 0])
        n = int(close[0]) if close.size else rows
    got_ids, got = ops.select_candidates(hidden, before, after, dtype, 7, ids, logprobs, **on)
    assert np.array_equal(got_ids[:n], want_ids[:n])
    check("linear", got[:n], want[:n], size[:n] + 1)


def equal_scores_stay_in_order(**on: Any) -> None:
    zeros = np.zeros(50 * 32, np.float32).view(np.uint8)
    ids, logprobs = np.array([[9, 3, 5], [7, 1, 2]], np.int32), np.full((2, 3), -1.5, np.float32)
    got_ids, got = ops.select_candidates(np.ones((2, 32), np.float32), zeros, zeros, "F32", 0, ids, logprobs, **on)
    assert np.array_equal(got_ids, ids)
    check("linear", got, np.full((2, 3), -np.log(3.0)))


def route_experts(rng: np.random.Generator, rows: int, n: int, k: int, is_normalized: bool, **on: Any) -> None:
    """Integers as logits: many ties, which go to the lower index."""
    for logits in (normal(rng, rows, n) * np.float32(4), rng.integers(-3, 3, (rows, n)).astype(np.float32)):
        experts, weights = ops.route_experts(logits, k, int(is_normalized), **on)
        want_experts, want = experts_reference.route(logits, k, is_normalized)
        assert np.array_equal(experts, want_experts)
        check("route", weights, want, np.ones_like(want))


def expert_linear(
    rng: np.random.Generator, dtype: str, rows: int, k: int, n: int, blocks: int, n_out: int, expert_rows: int,
    first_row: int, activations: str, **on: Any
) -> None:  # fmt: skip
    """Each choice is the product of its expert alone; on the CPU to the bit. x of a row, or of each choice."""
    for per_row in (True, False):
        _expert_linear(rng, dtype, rows, k, n, blocks, n_out, expert_rows, first_row, activations, per_row, **on)


def _expert_linear(
    rng: np.random.Generator, dtype: str, rows: int, k: int, n: int, blocks: int, n_out: int, expert_rows: int,
    first_row: int, activations: str, per_row: bool, **on: Any
) -> None:  # fmt: skip
    values = linear_reference.block_size(dtype)[0]
    n_in = blocks * (values if values > 1 else 32)
    w = linear_reference.random_weights(dtype, n * expert_rows * n_in, rng)
    experts = np.array([rng.permutation(n)[:k] for _ in range(rows)], np.int32)
    x = normal(rng, rows, n_in) if per_row else normal(rng, rows, k, n_in)
    got = ops.expert_linear(w, dtype, n, n_out, x, experts, first_row, expert_rows, activations, **on)
    parts = w.reshape(n, expert_rows, -1)[:, first_row : first_row + n_out]
    want, scale = np.empty((2, *got.shape))
    for row, j in np.ndindex(rows, k):
        own, one = np.ascontiguousarray(parts[experts[row, j]]).reshape(-1), (x[row] if per_row else x[row, j])[None]
        want[row, j], scale[row, j] = linear_reference.linear(own, dtype, n_out, one, activations)
        if "pack" not in on:
            alone = ops.linear(own, dtype, n_out, n_in, one, activations=activations, **on)
            assert np.array_equal(got[row, j], alone[0])
    rounds = "pack" in on and activations == "f32" and values > 1
    check("linear_int16" if rounds else "linear", got, want, scale)


def combine_experts(rng: np.random.Generator, rows: int, k: int, dim: int, has_all: bool, **on: Any) -> None:
    x, weights = normal(rng, rows, k, dim), normal(rng, rows, k)
    more = (normal(rng, rows, dim), normal(rng, rows), normal(rng, rows, dim)) if has_all else (None, None, None)
    want, scale = experts_reference.combine(x, weights, *more)
    check("linear", ops.combine_experts(x, weights, *more, **on), want, scale)
