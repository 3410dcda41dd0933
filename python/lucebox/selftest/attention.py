"""Cases of attention and of the paged KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lucebox import _engine
from lucebox.selftest import ops
from lucebox.selftest.case import Array, Case, Parts, case
from lucebox.selftest.inputs import ancestors_of, converted, normal, path, raw_bytes

# KV types: each packed format and each rotation once.
PACKED = (("q8_0", "q4_0"), ("wht4", "fp8"), ("q5_1", "wht3"), ("tq3_0", "bf16"))
# (query heads, KV heads, head_dim), rows: few and many queries per KV head, and a head_dim that matrix units do not
# support.
ATTENTION = (
    ((6, 2, 64), (1, 7, 70)), ((6, 1, 128), (1, 2, 33, 65)), ((12, 2, 256), (1, 11)), ((8, 1, 512), (1, 2, 9)),
    ((3, 3, 24), (5,)),
)  # fmt: skip


def caches(rng: np.random.Generator) -> Iterator[Case]:
    """Appends to the cache and moves within it, across page boundaries."""
    for types in (("F32", "F16"), ("F16", "BF16"), ("BF16", "F32")):
        for rows, n_past in ((1, 63), (33, 50)):
            shape = (rows, 3, 40)
            pages, table = _pages(rng, types, 3, 40), rng.permutation(5).astype(np.int32)
            arguments = (normal(rng, *shape), normal(rng, *shape), *pages, *types, table, n_past)
            yield case("kv_append", "exact", *arguments)
            angle = rng.uniform(0, 2 * np.pi, (rows, 16))
            turns = (np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32))
            fresh = (normal(rng, rows, 6, 40), *arguments[:2], normal(rng, 40), normal(rng, 40), *turns)
            plain = (*fresh, *_pages(rng, ("F32", "F32"), 3, 40), "F32", "F32", *arguments[-2:], 0.03)
            prepare = case("attention_prepare", "row", *plain, reference=_attention_inputs)
            yield prepare
            if rows == 1:
                yield replace(prepare, options={"sequences": 8})
            yield case("kv_move", "exact", *pages, *types, table, path(rng, 55), n_past)


def packed(rng: np.random.Generator) -> Iterator[Case]:
    """Caches of packed types: the rows that an append stores, and attention of one to many rows, with a gate, and once
    with a tree."""
    for types in PACKED:
        for heads, kv_heads, dim in ((6, 2, 64), (3, 1, 128), (6, 2, 256), (8, 1, 512)):
            for rows, n_past in ((1, 205), (3, 60), (11, 205), (35, 205), (35, 20), (67, 5)):
                n_pages = 5 if n_past == 205 else 2  # the warpgroup kernel needs more than two
                where = (*types, rng.permutation(5)[:n_pages].astype(np.int32))
                k, v = normal(rng, 2, n_past + rows, kv_heads, dim)
                appended = (k, v, *(_empty(kv, kv_heads, dim) for kv in types), *where, 0)
                pages = ops.kv_append(*appended)
                parent = np.array([rng.integers(-1, i) for i in range(rows)], np.int32) if rows == 11 else None
                masks = None if parent is None else ancestors_of(parent)
                q, gate = normal(rng, 2, rows, heads, dim)
                arguments = (q, *pages, *where, n_past, 1 / dim**0.5, gate, masks, parent)
                yield case("attention", "attention_bf16", *arguments, unit=1.0)
                if masks is not None:
                    yield (by_row := case("attention", "attention_bf16", *arguments, unit=1.0, by_row=True))
                    yield replace(by_row, without=("decode_8",))
                if rows == 1:
                    yield (several := case("attention", "attention_bf16", *arguments, unit=1.0, sequences=3))
                    yield replace(several, without=("decode_8",))
                    # A value between two codes may round to either, so attention to the pages is compared.
                    yield case("kv_append", "attention_bf16", *appended, kept=partial(_read, arguments), unit=1.0)


def scorers(rng: np.random.Generator) -> Iterator[Case]:
    """Ops of prompt scoring and sparse prefill: key scores, block means, block selection, and attention to the selected
    blocks."""
    for heads, kv_heads, dim in ((4, 2, 64), (8, 2, 128), (4, 1, 256)):
        n_past, rows = 900, 190
        n_blocks = (n_past + rows + 127) // 128
        table = rng.permutation(18).astype(np.int32)
        k, v = (_as_pages(raw_bytes(normal(rng, 18, kv_heads, 64, dim)), "F16", kv_heads, dim) for _ in range(2))
        q, scale = normal(rng, rows, heads, dim), 1 / dim**0.5
        tail = (q[-5:], k, "F16", table, n_past + rows - 5, scale, np.zeros((5, n_past + rows), np.float32))
        yield case("key_scores", "attention_f16", *tail)
        no_means = np.zeros((kv_heads, dim, n_blocks), np.float32)
        yield case("key_means", "row", no_means, k, "F16", table, 0, n_past + rows)
        # Block scores are either equal or far apart, so none is near the threshold.
        direction = normal(rng, dim)
        looks = np.where(rng.random(n_blocks) < 0.5, 2, -2).astype(np.float32)
        means = np.broadcast_to(direction[:, None] * looks / np.abs(direction).sum(), (kv_heads, dim, n_blocks)).copy()
        towards = np.broadcast_to(np.sign(direction), q.shape).copy()
        n_query_blocks = -(-rows // (128 // (heads // kv_heads)))
        choice = (towards, means, n_past, 1.0, 0.5, n_query_blocks)
        yield case("select_blocks", "exact", *choice)
        blocks = ops.select_blocks(*choice)
        given = (q, k, v, "F16", "F16", table, n_past, scale)
        for without in ((), ("sparse_sm90",), ("sparse_sm90", "sparse_32")):
            yield case("attention", "attention_f16", *given, blocks=blocks, unit=1.0, without=without)


def attentions(rng: np.random.Generator) -> Iterator[Case]:
    """Linear appends, trees, bidirectional blocks in a window; with and without a gate; split over thread blocks or
    not."""
    for (heads, kv_heads, dim), row_counts in ATTENTION:
        for dtype in ("F32", "F16", "BF16"):
            for rows in row_counts:
                for n_past in (0, 5, 205):
                    types, n_pages = (dtype, dtype), 5 if n_past else 2  # the warpgroup kernel needs more than two
                    pages, table = _pages(rng, types, kv_heads, dim), rng.permutation(5)[:n_pages].astype(np.int32)
                    is_tree = n_past == 5 and rows <= 64
                    parent = np.array([rng.integers(-1, i) for i in range(rows)], np.int32) if is_tree else None
                    masks = None if parent is None else ancestors_of(parent)
                    hidden: dict[str, Any] = {}
                    if n_past == 205 and rows <= 64:
                        masks = np.full(rows, (1 << rows) - 1, np.uint64)
                        hidden = {"first_slot": 1, "window": 70}
                    gate = normal(rng, rows, heads, dim) if n_past else None
                    q = normal(rng, rows, heads, dim)
                    arguments = (q, *pages, *types, table, n_past, 1 / dim**0.5, gate, masks, parent)
                    limit = "attention" if dtype == "F32" or dim < 64 else f"attention_{dtype.lower()}"
                    yield case("attention", limit, *arguments, unit=1.0, **hidden)
                    if is_tree and rows <= 32:
                        yield case("attention", limit, *arguments, unit=1.0, by_row=True)
                    if n_past == 205:  # a chain in a window, with sinks
                        chained = (q, *pages, *types, table, n_past, 1 / dim**0.5)
                        sinks = normal(rng, heads) * np.float32(4)
                        yield case("attention", limit, *chained, unit=1.0, window=70, sinks=sinks)
                    if rows == 1 and dtype != "F32":
                        yield case("attention", limit, *arguments, unit=1.0, **hidden, sequences=2)


def _pages(rng: np.random.Generator, types: tuple[str, str], kv_heads: int, dim: int) -> tuple[Array, Array]:
    """K and V of five pages, each [5, kv_heads, 64, dim]."""
    plain = raw_bytes(normal(rng, 2, 5, kv_heads, 64, dim))
    k, v = np.split(plain, 2)
    return _as_pages(k, types[0], kv_heads, dim), _as_pages(v, types[1], kv_heads, dim)


def _empty(kv: str, kv_heads: int, dim: int) -> Array:
    """Five pages of a type, each [5, kv_heads, 64, dim] or of other types [5, kv_heads, 64, bytes of a slot]."""
    size = _engine.kv_slot_bytes(kv, dim)
    return np.zeros((5, kv_heads, 64, dim), np.uint16) if kv == "bf16" else np.zeros((5, kv_heads, 64, size), np.uint8)


def _read(attended: tuple[Any, ...], pages: Parts) -> Parts:
    """K and V as the CPU's attention decodes them from pages."""
    return [ops.attention(attended[0], *pages, *attended[3:])]


def _as_pages(plain: NDArray[np.uint8], dtype: str, kv_heads: int, dim: int) -> Array:
    return converted(plain, dtype).view(np.float32 if dtype == "F32" else np.uint16).reshape(-1, kv_heads, 64, dim)


def _attention_inputs(
    u: Array, k: Array, v: Array, q_norm: Array, k_norm: Array, cos: Array, sin: Array, *cache: Any
) -> Parts:  # fmt: skip
    *where, eps = cache
    q, keys = (ops.rope(ops.rms_norm(x, w, eps), cos, sin) for x, w in ((u, q_norm), (k, k_norm)))
    return [q, *ops.kv_append(keys, v, *where)]
