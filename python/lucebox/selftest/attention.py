"""Cases of attention and of the paged KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lucebox import _engine
from lucebox.selftest import ops
from lucebox.selftest.case import Array, Case, Parts, in_parts, unit_one
from lucebox.selftest.inputs import ancestors_of, normal, path, raw_bytes

# (query heads, KV heads, head_dim), rows: few and many queries per KV head, and a head_dim that no matrix unit takes.
ATTENTION = (((6, 2, 64), (1, 7, 70)), ((6, 1, 128), (2, 33, 65)), ((12, 2, 256), (1, 11)), ((3, 3, 24), (5,)))


def caches(rng: np.random.Generator) -> Iterator[Case]:
    """Appends to the cache and moves in it, across page boundaries."""
    for types in (("F32", "F16"), ("F16", "BF16"), ("BF16", "F32")):
        for rows, n_past in ((1, 63), (33, 50)):
            shape = (rows, 3, 40)
            pages, table = _pages(rng, types, 3, 40), rng.permutation(5).astype(np.int32)
            arguments = (normal(rng, *shape), normal(rng, *shape), *pages, *types, table, n_past)
            yield Case("kv_append", "exact", partial(_appended, *arguments), arguments, {}, _bytes)
            angle = rng.uniform(0, 2 * np.pi, (rows, 16))
            turns = (np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32))
            fresh = (normal(rng, rows, 6, 40), *arguments[:2], normal(rng, 40), normal(rng, 40), *turns)
            plain = (*fresh, *_pages(rng, ("F32", "F32"), 3, 40), "F32", "F32", *arguments[-2:], 0.03)
            yield in_parts("attention_prepare", "row", partial(_attention_inputs, *plain), list, *plain)
            moved = (*pages, *types, table, path(rng, 55), n_past)
            yield Case("kv_move", "exact", partial(_moved, *moved), moved, {}, _bytes)


def attentions(rng: np.random.Generator) -> Iterator[Case]:
    """Chains, trees, blocks that attend both ways in a window; with and without a gate; split over blocks or not."""
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
                    arguments = (q, *pages, *types, table, n_past, 1 / dim**0.5, gate)
                    expected = partial(ops.attention, *arguments, masks, parent, **hidden)
                    limit = "attention" if dtype == "F32" or dim < 64 else f"attention_{dtype.lower()}"
                    options = {"ancestors": masks, **hidden}
                    yield Case("attention", limit, expected, arguments, options, unit=unit_one)


def _pages(rng: np.random.Generator, types: tuple[str, str], kv_heads: int, dim: int) -> tuple[Array, Array]:
    """K and V of five pages, each [5, kv_heads, 64, dim]."""
    plain = raw_bytes(normal(rng, 2, 5, kv_heads, 64, dim))
    k, v = np.split(plain, 2)
    return _as_pages(k, types[0], kv_heads, dim), _as_pages(v, types[1], kv_heads, dim)


def _as_pages(plain: NDArray[np.uint8], dtype: str, kv_heads: int, dim: int) -> Array:
    stored = plain if dtype == "F32" else np.asarray(_engine.ops.convert(plain, "F32", dtype))
    return stored.view(np.float32 if dtype == "F32" else np.uint16).reshape(-1, kv_heads, 64, dim)


def _appended(*arguments: Any) -> Array:
    return _bytes(ops.kv_append(*arguments))


def _moved(*arguments: Any) -> Array:
    return _bytes(ops.kv_move(*arguments))


def _bytes(pages: Parts) -> Array:
    return np.concatenate([raw_bytes(part) for part in pages])


def _attention_inputs(
    u: Array, k: Array, v: Array, q_norm: Array, k_norm: Array, cos: Array, sin: Array, *cache: Any
) -> Parts:  # fmt: skip
    *where, eps = cache
    q, keys = (ops.rope(ops.rms_norm(x, w, eps), cos, sin) for x, w in ((u, q_norm), (k, k_norm)))
    return [q, *ops.kv_append(keys, v, *where)]
