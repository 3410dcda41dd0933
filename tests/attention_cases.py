"""Test cases of attention over a paged cache. Results on the CPU (on: isa) or a device (on: pack) are compared with
fp64; a device's result also with the CPU's."""

from __future__ import annotations

from typing import Any

import numpy as np
from kv_cache import Cache, filled_with_numbers, poisoned
from lucebox.selftest import ops
from numpy.typing import NDArray
from reference import attention as reference
from reference.kv_types import PAGE
from reference.linear import random_weights
from tolerances import check
from tree_data import block_masks, random_tree

F32 = NDArray[np.float32]
FAST = tuple(
    (dtype, dim) for dtype in ("F16", "BF16") for dim in (64, 128, 256)
)  # GPU kernels use matrix units for these


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.normal(size=shape).astype(np.float32)


def compare(
    on: dict[str, Any],
    cache: Cache,
    q: F32,
    n_past: int,
    gate: F32 | None = None,
    ancestors: NDArray[np.uint64] | None = None,
    parent: NDArray[np.int32] | None = None,
    family: str = "",
    **hidden: Any,
) -> F32:
    """Checks the result, with errors relative to the largest value, and returns it. `hidden`: first_slot, window."""
    rows, _, dim = q.shape
    is_fast = "pack" in on and (cache.k_type, dim) in FAST and cache.k_type == cache.v_type
    family = family or (f"attention_{cache.k_type.lower()}" if is_fast else "attention")
    scale, unit = dim**-0.5, np.abs(cache.v).max()
    own_gate = None if gate is None else gate[:, :, -dim:]
    mask = reference.visible(rows, n_past, ancestors, **hidden)
    n_slots = n_past + rows
    want = reference.attention(q, cache.k[:n_slots], cache.v[:n_slots], scale, mask, own_gate)
    on_cpu = (q, *cache.pages, n_past, scale, own_gate, ancestors, parent)
    if "pack" not in on:
        got = ops.attention(*on_cpu, **hidden, **on)
    else:
        got = ops.attention(q, *cache.pages, n_past, scale, gate, ancestors, **hidden, **on)
        check(family, got, ops.attention(*on_cpu, **hidden), unit)
    check(family, got, want, unit)
    return np.asarray(got)


def check_rounded(pack: Any, rng: np.random.Generator, o: F32, attention: tuple[Any, ...]) -> None:
    """Products of an attention that is `o` alone have the same bits as products of o, whose merge does not round it."""
    rows, n_in = len(o), o[0].size
    w = random_weights("Q8_0", 5 * n_in, rng)
    for activations in ("int8", "f32"):
        want = ops.linear(w, "Q8_0", 5, n_in, o.reshape(rows, -1), None, activations, pack=pack)
        assert "round_rows_kernel" in ops.take_started(pack)
        reader = ops.reader((0, 0, "o"), w, "Q8_0", 5, n_in, rows) | {"activations": activations}
        fields = ops.attention.fields(*attention)
        [([got], [product])] = ops.run_calls([("attention", [fields], [reader])], pack=pack)
        assert np.array_equal(got["o"], o) and np.array_equal(product["y"], want)
        assert "round_rows_kernel" not in ops.take_started(pack)


def chain(
    on: dict[str, Any], rng: np.random.Generator, types: tuple[str, str], heads: int, kv_heads: int, dim: int,
    n_past: int, rows: int,
) -> None:  # fmt: skip
    cache = filled_with_numbers(n_past + rows, kv_heads, dim, *types, rng, isa=on.get("isa", "auto"))
    compare(on, cache, normal(rng, rows, heads, dim) * np.float32(3), n_past)


def tree(on: dict[str, Any], rng: np.random.Generator, dtype: str, dim: int, rows: int) -> None:
    """A tree: rows see the committed slots and their ancestors. The gate is the second half of [query | gate] heads."""
    n_past = int(rng.integers(30, 101))
    cache = filled_with_numbers(n_past + rows, 2, dim, dtype, dtype, rng, isa=on.get("isa", "auto"))
    fused = normal(rng, rows, 4, 2 * dim) * np.float32(3)
    parent, masks = random_tree(rows, rng)
    compare(on, cache, np.ascontiguousarray(fused[:, :, :dim]), n_past, fused, masks, parent)


def block(
    on: dict[str, Any], rng: np.random.Generator, types: tuple[str, str], heads: int, kv_heads: int, dim: int,
    n_past: int, rows: int, capacity: int, mask: str, **hidden: int,
) -> None:  # fmt: skip
    """A draft block: rows see later rows, and some committed slots are hidden. Pages before the first visible slot are
    NaN."""
    cache = filled_with_numbers(n_past + rows, kv_heads, dim, *types, rng, capacity, on.get("isa", "auto"))
    words = block_masks(rows, mask, rng)
    seen = reference.visible(rows, n_past, words, **hidden)
    for page in cache.table[: np.flatnonzero(seen.any(0))[0] // PAGE]:
        cache.k_pages[page] = poisoned(1, kv_heads, types[0], dim)[0]
        cache.v_pages[page] = poisoned(1, kv_heads, types[1], dim)[0]
    q, gate = normal(rng, 2, rows, heads, dim) * np.float32(3)
    compare(on, cache, q, n_past, gate, words, **hidden)
