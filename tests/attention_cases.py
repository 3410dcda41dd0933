"""Test cases of attention over a paged cache. Results on the CPU (on: isa) or a device (on: pack) are compared with
fp64 from the stored keys and values; a device's result also with the CPU's."""

from __future__ import annotations

from typing import Any

import numpy as np
from gpu_packs import F16_ONLY
from kv_cache import Cache, filled, poisoned
from lucebox.selftest import ops
from numpy.typing import NDArray
from reference import attention as reference
from reference import kv_types
from reference import rms_norm as norm_reference
from reference import rope as rope_reference
from reference.kv_types import PAGE
from reference.linear import random_weights
from tolerances import check
from tree_data import block_masks, random_tree

F32 = NDArray[np.float32]
FAST = tuple(
    (dtype, dim) for dtype in ("F16", "BF16") for dim in (64, 128, 256)
)  # GPU kernels use matrix units for these


def has_matrix_units(on: dict[str, Any], dim: int, key_tail: int = 0) -> bool:
    """Whether kernels use matrix units for these heads where the case runs; of 512, on NVIDIA from sm_80 on."""
    target = str(on["pack"].target) if "pack" in on else ""
    is_wide = dim == 512 and key_tail in (0, 128) and bool(target) and target not in F16_ONLY and "gfx" not in target
    return (key_tail == 0 and dim in (64, 128, 256)) or is_wide


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.normal(size=shape).astype(np.float32)


def compare(
    on: dict[str, Any], cache: Cache, q: F32, n_past: int, gate: F32 | None = None,
    ancestors: NDArray[np.uint64] | None = None, parent: NDArray[np.int32] | None = None, family: str = "",
    sinks: F32 | None = None, **hidden: Any,
) -> F32:  # fmt: skip
    """Checks the result, with errors relative to the largest value, and returns it. `hidden`: first_slot, window,
    last_seen."""
    rows, dim = len(q), cache.dim
    # Pages that no row sees may hold NaN, which a weight of zero does not hide in the reference.
    keys, values = (np.nan_to_num(stored)[: n_past + rows] for stored in (cache.keys, cache.values))
    mask = reference.visible(rows, n_past, ancestors, **hidden, parent=parent)
    want = reference.attention(q, keys, values, dim**-0.5, mask, None if gate is None else gate[:, :, -dim:], sinks)
    given = (q, *cache.pages, n_past, dim**-0.5, gate, ancestors, parent)
    hidden |= {"sinks": sinks, **cache.sizes}
    got: F32 = ops.attention(*given, **hidden, **on)
    unit = np.abs(values).max()
    if "pack" in on:
        unit *= 2 if kv_types.is_rotated(cache.v_type) else 1  # a rotated value may be larger than each of its inputs
        on_cpu = ops.attention(*given, **hidden)
        family = family or _family(on, cache, dim)
        if family == "attention_packed":
            check("attention", on_cpu, want, unit)
            want, family = _from_operands(on, cache, q, n_past + rows, mask, gate, sinks)
        else:
            check(family, got, on_cpu, unit)
    check(family or "attention", got, want, unit)
    return got


def _from_operands(
    on: dict[str, Any], cache: Cache, q: F32, n_slots: int, mask: NDArray[np.bool_], gate: F32 | None,
    sinks: F32 | None,
) -> tuple[NDArray[np.float64], str]:  # fmt: skip
    """The result from a kernel's own operands in fp64, and its tolerance. How far operands rounded to f16 move the
    result depends on the inputs: most where slots nearly tie."""
    dim = cache.dim
    has_units = "f32" not in (cache.k_type, cache.v_type) and has_matrix_units(on, dim, cache.key_tail)
    of_operands = reference.rounded_attention if has_units else reference.attention
    keys, values = (np.nan_to_num(slots)[:n_slots] for slots in cache.device_slots)
    o = of_operands(q, keys, values, dim**-0.5, mask, sinks=sinks)
    if kv_types.is_rotated(cache.v_type):
        o = kv_types.unrotate(o)
    factor = 1 if gate is None else reference.sigmoid(gate[:, :, -dim:])
    return o * factor, "attention_packed" if has_units else "attention"


def _family(on: dict[str, Any], cache: Cache, dim: int) -> str:
    """What the kernels of a device round for these types."""
    k, v = cache.k_type.lower(), cache.v_type.lower()
    has_units = has_matrix_units(on, dim, cache.key_tail)
    converts = k != v or (k == "bf16" and cache.key_tail > 0)
    if not {k, v} <= {"f32", "f16", "bf16"} or (converts and has_units):
        return "attention_packed"
    return f"attention_{k}" if k != "f32" and has_units else "attention"


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
    cache = filled(n_past + rows, kv_heads, dim, *types, rng, isa=on.get("isa", "auto"))
    compare(on, cache, normal(rng, rows, heads, dim) * np.float32(3), n_past)


def tree(on: dict[str, Any], rng: np.random.Generator, dtype: str, dim: int, rows: int) -> None:
    """A tree: rows see the committed slots and their ancestors. The gate is the second half of [query | gate] heads."""
    n_past = int(rng.integers(30, 101))
    cache = filled(n_past + rows, 2, dim, dtype, dtype, rng, isa=on.get("isa", "auto"))
    fused = normal(rng, rows, 4, 2 * dim) * np.float32(3)
    parent, masks = random_tree(rows, rng)
    compare(on, cache, np.ascontiguousarray(fused[:, :, :dim]), n_past, fused, masks, parent)


def in_keys(
    on: dict[str, Any], rng: np.random.Generator, dtype: str, heads: int, kv_heads: int, dim: int, key_tail: int,
    n_past: int, rows: int, capacity: int = 0, is_tree: bool = False, **hidden: Any,
) -> None:  # fmt: skip
    """A chain or a tree over a cache whose values are parts of the keys, with a gate."""
    cache = filled(n_past + rows, kv_heads, dim, dtype, dtype, rng, capacity, on.get("isa", "auto"), key_tail)
    parent, masks = random_tree(rows, rng) if is_tree else (None, None)
    q, gate = normal(rng, rows, heads, dim + key_tail) * np.float32(3), normal(rng, rows, heads, dim)
    compare(on, cache, q, n_past, gate, masks, parent, **hidden)


def prepared_in_keys(
    on: dict[str, Any], rng: np.random.Generator, dtype: str, heads: int, kv_heads: int, dim: int, n_pairs: int,
    key_tail: int, n_past: int, rows: int,
) -> None:  # fmt: skip
    """AttentionPrepare in two appends, and Attention, of a layer with K = V; fp64 has keys and values apart."""
    slots, half = n_past + rows, dim // 2
    x, u = normal(rng, slots, kv_heads, dim), normal(rng, slots, heads, dim)
    # Scores have a deviation of about 2, as in other cases: larger ones have larger rounding errors.
    q_weight, k_weight = rng.uniform(0.5, 1.5, size=(2, dim)).astype(np.float32) * np.float32(0.3)
    angle = rng.uniform(-9, 9, (slots, half)) * (np.arange(half) < n_pairs)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    ones = np.ones(dim, np.float32)
    values = norm_reference.rms_norm(x, ones, 1e-6)
    keys = rope_reference.rope(values * k_weight, cos, sin, "halves")
    queries = rope_reference.rope(norm_reference.rms_norm(u, q_weight, 1e-6), cos, sin, "halves")[n_past:]
    want = reference.attention(queries, keys, values, 1, reference.visible(rows, n_past, None))

    matched = np.where(np.arange(dim) % half < n_pairs, q_weight, q_weight * k_weight)
    n_pages = slots // PAGE + 2
    pages = poisoned(n_pages, kv_heads, dtype, dim + key_tail)
    cache = (None, dtype, dtype, rng.permutation(n_pages).astype(np.int32))
    sizes = {"head_dim": dim, "key_tail": key_tail}
    scratch = np.zeros((slots, kv_heads, dim + key_tail), np.float32)
    for part in (slice(0, n_past), slice(n_past, slots)):
        given = u[part], x[part], scratch[part], matched, k_weight, cos[part], sin[part], pages, *cache, part.start
        q, pages, _ = ops.attention_prepare(*given, 1e-6, v_norm=ones, n_tail_pairs=n_pairs, **sizes, **on)
    alone = ops.attention_prepare(u[n_past:], None, None, *given[3:], 1e-6, n_tail_pairs=n_pairs, **sizes, **on)
    assert np.array_equal(alone[0], q)
    got = ops.attention(q, pages, *cache, n_past, 1.0, **sizes, **on)
    check("attention", got, want, np.abs(values).max())


def block(
    on: dict[str, Any], rng: np.random.Generator, types: tuple[str, str], heads: int, kv_heads: int, dim: int,
    n_past: int, rows: int, capacity: int, mask: str, **hidden: int,
) -> None:  # fmt: skip
    """A draft block: rows see later rows, and some committed slots are hidden. Pages before the first visible slot are
    NaN."""
    cache = filled(n_past + rows, kv_heads, dim, *types, rng, capacity, on.get("isa", "auto"))
    words = block_masks(rows, mask, rng)
    seen = reference.visible(rows, n_past, words, **hidden)
    for page in cache.table[: np.flatnonzero(seen.any(0))[0] // PAGE]:
        cache.k_pages[page] = poisoned(1, kv_heads, types[0], dim)[0]
        cache.v_pages[page] = poisoned(1, kv_heads, types[1], dim)[0]
    q, gate = normal(rng, 2, rows, heads, dim) * np.float32(3)
    compare(on, cache, q, n_past, gate, words, **hidden)


def sinks(
    on: dict[str, Any], rng: np.random.Generator, types: tuple[str, str], heads: int, kv_heads: int, dim: int,
    n_past: int, rows: int, capacity: int = 0, window: int = 0, is_tree: bool = False,
) -> F32:  # fmt: skip
    """A chain or a tree, whose heads have sinks: some small, some larger than any score. Not all are, because the
    outputs of such heads are mostly rounding errors of the scores."""
    cache = filled(n_past + rows, kv_heads, dim, *types, rng, capacity, on.get("isa", "auto"))
    parent, masks = random_tree(rows, rng) if is_tree else (None, None)
    q = normal(rng, rows, heads, dim) * np.float32(3)
    sizes = np.array([-30, 0, 2, 9, 40], np.float32)
    own = rng.choice(sizes, heads)
    own[rng.integers(heads)] = rng.choice(sizes[:-1])
    return compare(on, cache, q, n_past, None, masks, parent, sinks=own, window=window)


def images(
    on: dict[str, Any], rng: np.random.Generator, types: tuple[str, str], heads: int, kv_heads: int, dim: int,
    n_past: int, rows: int, window: int = 0,
) -> None:  # fmt: skip
    """A chain with images, whose rows see the whole image: one at its start, others of any size, some within a page."""
    cache = filled(n_past + rows, kv_heads, dim, *types, rng, 0, on.get("isa", "auto"))
    last_seen, at = np.arange(rows, dtype=np.int32), 0
    while at < rows:
        end = min(at + int(rng.integers(1, rows + 1)), rows)
        last_seen[at:end] = end - 1
        at = end + int(rng.integers(0, 9))
    compare(on, cache, normal(rng, rows, heads, dim) * np.float32(3), n_past, window=window, last_seen=last_seen)
