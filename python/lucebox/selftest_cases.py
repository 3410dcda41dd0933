"""The cases of `lucebox selftest`: every op in odd sizes on fresh random inputs, and the table of how far a device may
be from the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lucebox._engine import Sampler, ops

__all__ = ["LIMITS", "Case", "Limit", "cases"]

Array = NDArray[Any]
Parts = Sequence[Array]


@dataclass(frozen=True, slots=True)
class Limit:
    """How far a value may be from the CPU's, in units of its case."""

    error: float
    reason: str


LIMITS = {
    "exact": Limit(0, "nothing is computed, or the rounding is defined"),
    "rope": Limit(1e-6, "two products and a sum, fused or not"),
    "row": Limit(1e-5, "fp32 sums in another order, and the chip's own root, exponential and reciprocal (2 ulp each)"),
    "recurrence": Limit(2e-5, "fp32 sums over up to 200 rows, each from the ones before, in another order"),
    "sum": Limit(1e-6, "fp32 sums of up to 17408 terms in another order"),
    "matrix": Limit(1e-5, "matrix units add exact 16-bit products in fp32 and may cut what they shift out"),
    "attention": Limit(1e-5, "fp32 scores and sums in another order, weights from the chip's own exponential"),
    "attention_f16": Limit(3e-3, "queries and weights are rounded to f16 for the matrix units"),
    "attention_bf16": Limit(2.5e-2, "queries and weights are rounded to bf16 for the matrix units"),
    "half": Limit(8e-3, "both operands are rounded to bf16, 2^-9 each, and one term may be all of a sum"),
    "int16": Limit(1e-4, "a device keeps 16 bits of an x that meets quantised weights"),
    "few": Limit(1e-3, "x of 8 bits is rounded once more to 11, before a min that may be several times the weight"),
    "int8": Limit(2e-4, "of 256 values or more, one halfway between two 8-bit codes may take either"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One call on the device and what the CPU says of it."""

    op: str
    limit: str
    expected: Callable[[], Any]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    collect: Callable[[Any], Array] = np.asarray
    """Makes what the device returns comparable."""
    unit: Callable[[], Array] | None = None
    """What errors are measured in: None for the largest value of each row, the sum of the absolute values of its terms
    for a product, whose terms may cancel."""
    without: tuple[str, ...] = ()
    """Words in the names of kernels that are taken out of the pack, so that those which they are preferred to run."""

    @property
    def label(self) -> str:
        words = [*map(_word, self.arguments), *(f"{name}={_word(value)}" for name, value in self.options.items())]
        return f"{self.op}({', '.join(words)})" + "".join(f" without {word}" for word in self.without)


def _word(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return str(list(value.shape))
    return f"[{', '.join(map(_word, value))}]" if isinstance(value, list) else str(value)


@dataclass(frozen=True, slots=True)
class BlockType:
    """A block of weights, as far as random bytes must know it."""

    values: int
    bytes: int
    scales: tuple[int, ...]
    """Where its f16 scales are; every other byte may be anything."""


BLOCKS = {
    "F32": None,
    "F16": None,
    "BF16": None,
    "Q8_0": BlockType(32, 34, (0,)),
    "Q4_0": BlockType(32, 18, (0,)),
    "Q4_1": BlockType(32, 20, (0, 2)),
    "Q5_0": BlockType(32, 22, (0,)),
    "Q5_1": BlockType(32, 24, (0, 2)),
    "Q2_K": BlockType(256, 84, (80, 82)),
    "Q3_K": BlockType(256, 110, (108,)),
    "Q4_K": BlockType(256, 144, (0, 2)),
    "Q5_K": BlockType(256, 176, (0, 2)),
    "Q6_K": BlockType(256, 210, (208,)),
    "IQ4_NL": BlockType(32, 18, (0,)),
    "IQ4_XS": BlockType(256, 136, (0,)),
    "MXFP4": BlockType(32, 17, ()),
}
# (n_out, n_in): fewer rows than a block takes, odd counts of rows and of blocks, rows too long for one piece a thread.
PRODUCTS = ((1, 256), (3, 768), (67, 1280), (5, 17408))
ROW_COUNTS = (1, 2, 5)
RUN = 64  # rows of a recurrent layer that the CPU takes at once
# (key heads, value heads, dk, dv), rows: a step, trees, long chains; more slices than any chip has multiprocessors.
RECURRENCES = (((2, 6, 128, 128), (0, 1, 22, 130)), ((1, 1, 24, 16), (1, 7, 65)), ((2, 48, 8, 96), (3, 65)))
# (query heads, KV heads, head_dim), rows: few and many queries a KV head, and a head_dim that no matrix unit takes.
ATTENTION = (((6, 2, 64), (1, 7, 70)), ((6, 1, 128), (2, 33, 65)), ((12, 2, 256), (1, 11)), ((3, 3, 24), (5,)))
# (n_out, n_in): tiles of 128 outputs, in shares of several blocks; rows: every kernel's, and between them.
BATCHES = ((3, 256), (130, 768), (5, 17408))
BATCH_ROWS = (2, 22, 13, 32, 47, 130, 64)
# Types of kernels of tiles, to which those for few rows are preferred.
TILES = ("Q8_0", "Q4_0", "Q4_K", "Q6_K", "F16", "BF16")
# Types without kernels for many rows.
EXPANDED = ("Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q5_K", "IQ4_NL", "IQ4_XS", "MXFP4")
LEAST_EXPANDED_ROWS = 12
PAIRED, PAIR_ROWS = ("Q4_K", "Q5_K"), (2, 13, 22, 32)  # types that have kernels for few rows together with Q6_K
SHARED = ("Q4_K", "Q6_K")  # types of mat-vec kernels that read from shared memory
# Tiles of the products of warpgroups, so that each is the only one left once, and all of them.
PREFERRED = (("256x64", "128x128"), ("256x128", "128x128"), ("gemm_sm90",))


def cases(rng: np.random.Generator, wide: str) -> Iterator[Case]:
    """Every case. wide: BF16, or F16 where matrix units take nothing else: what x becomes that meets BF16 weights."""
    yield from _embeds(rng)
    yield from _norms(rng)
    yield from _products(rng)
    yield from _groups(rng)
    yield from _batches(rng, wide)
    yield from _elementwise(rng)
    yield from _rounded(rng)
    yield from _megakernels(rng)
    yield from _recurrent_inputs(rng)
    yield from _recurrences(rng)
    yield from _caches(rng)
    yield from _attentions(rng)
    yield from _reads(rng)
    yield from _samples(rng)


def _same(op: str, limit: str, *arguments: Any, unit: Callable[[], Array] | None = None, **options: Any) -> Case:
    """The CPU's op of the same name with the same arguments."""
    return Case(op, limit, partial(getattr(ops, op), *arguments, **options), arguments, options, unit=unit)


def _embeds(rng: np.random.Generator) -> Iterator[Case]:
    for dtype in BLOCKS:
        for rows in (1, 7):
            ids = rng.integers(0, 41, rows, np.int32)
            yield _same("embed", "exact", _weights(rng, dtype, 41 * 768), dtype, 768, ids)


def _norms(rng: np.random.Generator) -> Iterator[Case]:
    for rows, heads, dim in ((1, 1, 5120), (3, 1, 1021), (2, 7, 128), (5, 3, 33)):
        x, z, w = _normal(rng, rows, heads, dim), _normal(rng, rows, heads, dim), _normal(rng, dim)
        yield _same("rms_norm", "row", x, w, 0.03)
        yield _same("gated_rms_norm", "row", x, z, w, 0.03)


def _products(rng: np.random.Generator) -> Iterator[Case]:
    for dtype, block in BLOCKS.items():
        for n_out, n_in in PRODUCTS:
            w = _weights(rng, dtype, n_out * n_in)
            for rows in ROW_COUNTS:
                x = _normal(rng, rows, n_in)
                add = _normal(rng, rows, n_out) if rows % 2 else None
                for activations, limit in (("f32", "int16"), ("int8", "int8")) if block else (("f32", "sum"),):
                    unit = partial(_terms, w, dtype, x)
                    yield _same("linear", limit, w, dtype, n_out, n_in, x, add, unit=unit, activations=activations)
    for dtype in SHARED:
        kernel = f"gemv_{dtype.lower()}_int8"
        for n_out, n_in in ((38, 5120), (4, 17408)):  # Q6_K: in pairs of rows
            w, x, add = _weights(rng, dtype, n_out * n_in), _normal(rng, 1, n_in), _normal(rng, 1, n_out)
            unit = partial(_terms, w, dtype, x)
            case = _same("linear", "int8", w, dtype, n_out, n_in, x, add, unit=unit, activations="int8")
            yield case
            yield replace(case, without=(f"{kernel}_kernel", f"{kernel}_wide_kernel"))
            yield replace(case, without=(f"{kernel}_ring_kernel", f"{kernel}_whole_kernel"))


def _groups(rng: np.random.Generator) -> Iterator[Case]:
    """Products of several types."""
    n_out, n_in = [67, 3, 130], 768
    for dtypes, activations, limit in (
        (["Q4_K", "Q6_K", "Q8_0"], "int8", "int8"),
        (["Q2_K", "Q5_K", "Q2_K"], "int8", "int8"),
        (["Q4_0", "Q4_K", "Q6_K"], "f32", "int16"),
        (["F32", "BF16", "F16"], "f32", "sum"),
    ):
        weights = [_weights(rng, dtype, n * n_in) for dtype, n in zip(dtypes, n_out, strict=True)]
        x = _normal(rng, 3, n_in)

        arguments, options = (weights, dtypes, n_out, n_in, x), {"activations": activations}
        alone = partial(_alone, *arguments, activations)
        unit = partial(_group_terms, weights, dtypes, x)
        yield Case("linear_group", limit, alone, arguments, options, _side_by_side, unit)


def _batches(rng: np.random.Generator, wide: str) -> Iterator[Case]:
    """Products with many rows of x on matrix units."""
    for dtype in BLOCKS:
        for i, rows in enumerate(BATCH_ROWS):
            yield from _batch(rng, wide, dtype, BATCHES[i % len(BATCHES)], rows)
        for without in PREFERRED:
            for case in _batch(rng, wide, dtype, (130, 768), 65):
                yield replace(case, without=without)
    for dtype in TILES:
        for rows in BATCH_ROWS:
            for case in _batch(rng, wide, dtype, (130, 768), rows):
                yield replace(case, without=("gemm_skinny",), limit="int8" if case.limit == "few" else case.limit)
    for dtype in PAIRED:
        for rows in PAIR_ROWS:
            is_expanded = dtype in EXPANDED and rows >= LEAST_EXPANDED_ROWS
            dtypes, n_out, n_in = [dtype, "Q6_K", dtype], [67, 130, 3], 768
            weights = [_weights(rng, one, n * n_in) for one, n in zip(dtypes, n_out, strict=True)]
            arguments = (weights, dtypes, n_out, n_in, _normal(rng, rows, n_in))
            alone = partial(_alone, *arguments, "f32" if is_expanded else "int8")
            unit = partial(_group_terms, weights, dtypes, arguments[-1])
            limit = "half" if is_expanded else "few"
            yield Case("matmul_group", limit, alone, arguments, {"activations": "int8"}, _side_by_side, unit)


def _batch(rng: np.random.Generator, wide: str, dtype: str, shape: tuple[int, int], rows: int) -> Iterator[Case]:
    """16-bit weights, quantised ones from 65 rows on, and expanded ones meet an x rounded to 16 bits."""
    n_out, n_in = shape
    w, x = _weights(rng, dtype, n_out * n_in), _normal(rng, rows, n_in)
    add = _normal(rng, rows, n_out) if rows % 2 else None
    unit = partial(_terms, w, dtype, x)
    for activations in ("int8", "f32") if BLOCKS[dtype] else ("f32",):
        is_expanded = dtype in EXPANDED and rows >= LEAST_EXPANDED_ROWS
        is_wide = activations == "int8" and (rows > 64 or is_expanded)
        limit = "half" if is_wide else "int16" if activations == "f32" else "few"
        exact, given = "f32" if is_wide else activations, x
        if not BLOCKS[dtype]:
            limit = "matrix"
            rounded = wide if dtype == "BF16" else dtype
            given = x if dtype == "F32" else _converted(_bytes(x), "F32", rounded).reshape(x.shape)
        expected = partial(ops.linear, w, dtype, n_out, n_in, given, add, activations=exact)
        arguments, options = (w, dtype, n_out, n_in, x, add), {"activations": activations}
        yield Case("matmul", limit, expected, arguments, options, unit=unit)


def _elementwise(rng: np.random.Generator) -> Iterator[Case]:
    for rows, dim in ((1, 17408), (3, 1021), (67, 33)):
        yield _same("swiglu", "row", _normal(rng, rows, dim), _normal(rng, rows, dim))
    for rows, heads, dim, n_pairs in ((1, 24, 128, 64), (5, 3, 80, 16), (3, 1, 66, 33)):
        angle = rng.uniform(0, 2 * np.pi, (rows, n_pairs))
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        for pairs in ("halves", "adjacent"):
            yield _same("rope", "rope", _normal(rng, rows, heads, dim), cos, sin, pairs=pairs)


def _rounded(rng: np.random.Generator) -> Iterator[Case]:
    """What is rounded where it is made, to 16 bits, and what that stands for."""
    for rows, heads, dim in ((1, 1, 5120), (3, 5, 96)):
        x, z, w = _normal(rng, rows, heads, dim), _normal(rng, rows, heads, dim), _normal(rng, dim)
        gate, up = x.reshape(rows, -1), z.reshape(rows, -1)
        for op, arguments in (("rms_norm", (x, w, 0.03)), ("gated_rms_norm", (x, z, w, 0.03)), ("swiglu", (gate, up))):
            expected = partial(_twice, getattr(ops, op), rows, *arguments)
            yield Case(f"{op}_rounded", "int16", expected, (*arguments, 16), {}, partial(_meant, rows))


def _megakernels(rng: np.random.Generator) -> Iterator[Case]:
    """A norm and a product as one phase, by each of the kernels. The simulator has those whose weights come by bulk
    copies, and those whose weights come directly."""
    streamed = ("megakernel_plain_kernel", "megakernel_32_kernel", "megakernel_256_kernel")
    for dtype in ("BF16", "Q5_0", "Q4_K"):
        for n_out, n_in, without in ((131, 256, ()), (517, 2048, ()), (131, 256, streamed), (517, 2048, streamed)):
            x, norm, w = _normal(rng, n_in), _normal(rng, n_in), _weights(rng, dtype, n_out * n_in)
            normed = ops.rms_norm(x.reshape(1, 1, -1), norm, 0.03).reshape(1, -1)
            expected = partial(ops.linear, w, dtype, n_out, n_in, normed, None, activations="int8")
            limit = "row" if dtype == "BF16" else "int8"
            unit = partial(_terms, w, dtype, normed)
            given = (x, norm, 0.03, w, dtype, n_out)
            yield Case("megakernel", limit, expected, given, {}, _as_row, unit, without)


def _as_row(y: Array) -> Array:
    return y.reshape(1, -1)


def _recurrent_inputs(rng: np.random.Generator) -> Iterator[Case]:
    """What comes before the recurrence: positions, the convolution, the gates."""
    for rows, n_pairs in ((1, 32), (70, 33)):
        pos = rng.integers(0, 1 << 18, (3, rows)).astype(np.int32)
        table = (pos, rng.integers(0, 3, n_pairs).astype(np.uint8), _normal(rng, n_pairs))
        yield Case("rope_table", "rope", partial(_stacked, ops.rope_table, *table), table, {}, np.stack, _one)
    for channels, taps in ((1037, 4), (33, 8)):
        for rows in (0, 1, 22, 130):
            state = (_normal(rng, taps - 1, channels), _normal(rng, RUN, channels))
            conv = (_normal(rng, rows, channels), _normal(rng, channels, taps), *state, _path(rng, 5))
            yield _in_parts("causal_conv", "row", partial(_convolved, *conv), partial(_kept, rows, None), *conv)
    for heads, dk in ((3, 40), (16, 128)):
        qk, g, beta = _normal(rng, 5, 2 * heads * dk + 3), 9 * _normal(rng, 5, 33), 9 * _normal(rng, 5, 33)
        prepare = (qk, g, beta, -np.abs(_normal(rng, 33)), _normal(rng, 33), heads, dk, 1e-6)
        yield _in_parts("delta_prepare", "row", partial(_prepared, *prepare), list, *prepare)
    for rows, kh, vh, dk, taps in ((1, 3, 33, 40, 8), (1, 16, 16, 128, 4), (22, 2, 16, 128, 4), (130, 2, 16, 128, 4)):
        channels = 2 * kh * dk + 24 * vh
        state = (_normal(rng, taps - 1, channels), _normal(rng, RUN, channels))
        gates = (9 * _normal(rng, rows, vh), 9 * _normal(rng, rows, vh), -np.abs(_normal(rng, vh)), _normal(rng, vh))
        x = _normal(rng, rows, channels)
        inputs = (x, _normal(rng, channels, taps), *state, *gates, kh, dk, 1e-6, _path(rng, 5))
        yield _in_parts("delta_inputs", "row", partial(_made_inputs, *inputs), partial(_kept_inputs, rows), *inputs)


def _recurrences(rng: np.random.Generator) -> Iterator[Case]:
    """After five rows of which some were accepted."""
    for (kh, vh, dk, dv), row_counts in RECURRENCES:
        for rows in row_counts:
            qkv = _normal(rng, rows, 2 * kh * dk + vh * dv) / np.sqrt(np.float32(dk))
            gates = (-np.abs(_normal(rng, rows, vh)) / 9, rng.uniform(size=(rows, vh)).astype(np.float32))
            keys, decays = _normal(rng, 2, RUN, kh, dk), -np.cumsum(np.abs(_normal(rng, 2, RUN, vh)), axis=1)
            state = (_normal(rng, vh, dk, dv), keys / np.sqrt(np.float32(dk)), decays, _normal(rng, RUN, vh, dv))
            parent = np.array([rng.integers(-1, i) for i in range(rows)], np.int32) if rows <= RUN else None
            shape = (parent, None if parent is None else _ancestors(parent), "tiled" if rows % 2 else "grouped")
            delta = (qkv, *gates, *state, 1, _path(rng, 5), *shape)
            kept = partial(_kept, rows, 1)
            yield _in_parts("gated_delta", "recurrence", partial(_recurred, *delta), kept, *delta)


def _caches(rng: np.random.Generator) -> Iterator[Case]:
    """Appends and moves, over the ends of pages."""
    for types in (("F32", "F16"), ("F16", "BF16"), ("BF16", "F32")):
        for rows, n_past in ((1, 63), (33, 50)):
            shape = (rows, 3, 40)
            pages, table = _pages(rng, types, 3, 40), rng.permutation(5).astype(np.int32)
            arguments = (_normal(rng, *shape), _normal(rng, *shape), *pages, *types, table, n_past)
            yield Case("kv_append", "exact", partial(_appended, *arguments), arguments, {}, np.concatenate)
            angle = rng.uniform(0, 2 * np.pi, (rows, 16))
            turns = (np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32))
            fresh = (_normal(rng, rows, 6, 40), *arguments[:2], _normal(rng, 40), _normal(rng, 40), *turns)
            plain = (*fresh, *_pages(rng, ("F32", "F32"), 3, 40), "F32", "F32", *arguments[-2:], 0.03)
            yield _in_parts("attention_prepare", "row", partial(_attention_inputs, *plain), _as_floats, *plain)
            moved = (*pages, *types, table, _path(rng, 55), n_past)
            yield Case("kv_move", "exact", partial(_moved, *moved), moved, {}, np.concatenate)


def _attentions(rng: np.random.Generator) -> Iterator[Case]:
    """Chains and trees, with and without a gate, in caches that are cut or not and full or nearly empty."""
    for (heads, kv_heads, dim), row_counts in ATTENTION:
        for dtype in ("F32", "F16", "BF16"):
            for rows in row_counts:
                for n_past in (0, 5, 205):
                    types, n_pages = (dtype, dtype), 5 if n_past else 2  # warpgroups want more than two
                    pages, table = _pages(rng, types, kv_heads, dim), rng.permutation(5)[:n_pages].astype(np.int32)
                    is_tree = n_past == 5 and rows <= 64
                    parent = np.array([rng.integers(-1, i) for i in range(rows)], np.int32) if is_tree else None
                    masks = None if parent is None else _ancestors(parent)
                    gate = _normal(rng, rows, heads, dim) if n_past else None
                    q = _normal(rng, rows, heads, dim)
                    arguments = (q, *pages, *types, table, n_past, 1 / dim**0.5, gate)
                    expected = partial(ops.attention, *arguments, parent=parent, ancestors=masks)
                    limit = "attention" if dtype == "F32" or dim < 64 else f"attention_{dtype.lower()}"
                    yield Case("attention", limit, expected, arguments, {"ancestors": masks}, unit=_one)


def _reads(rng: np.random.Generator) -> Iterator[Case]:
    for size in (16, 1_000_016):
        x = rng.integers(0, 256, size, np.uint8)
        yield Case("read_memory", "exact", partial(_sum, x.view(np.uint32)), (x,), {}, _sum)


def _samples(rng: np.random.Generator) -> Iterator[Case]:
    """Tokens one after another, each with the counts and the draw number that the one before it left."""
    filters = {"temperature": 0.8, "top_k": 50, "typical_p": 0.95, "top_p": 0.9, "min_p": 0.01}
    penalties = {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1, "penalty_window": 3}
    bias = {"logit_bias": [(0, -100.0), (1, 2.0)]}
    for steps, vocab in ((4, 1), (20, 37), (3, 32_003)):
        prompt = rng.integers(0, vocab, 5, np.int32)
        x, ties = 3 * _normal(rng, steps, vocab), rng.integers(0, 9, (steps, vocab)).astype(np.float32)
        for logits in (x, ties):
            mask = rng.integers(0, 2**32, (vocab + 31) // 32, np.uint32) | 4  # a token that no bias forbids
            masked = {"mask": mask} if vocab > 2 else {}
            for options in ({}, penalties, {"temperature": 1.0}, filters, {**filters, **penalties}, masked):
                some: dict[str, Any] = {**options, **(bias if vocab > 1 else {}), "seed": int(rng.integers(1 << 32))}
                yield Case(
                    "sample", "exact", partial(_sampled, logits, prompt, **some), (logits, prompt), some, _tokens
                )


def _in_parts(
    op: str, limit: str, expected: Callable[[], Parts], kept: Callable[[Parts], Parts], *arguments: Any
) -> Case:
    """A result and the state after it, each in units of its largest value."""

    def unit() -> Array:
        parts = kept(expected())
        return np.concatenate([np.full(part.size, np.abs(part).max(initial=0)) for part in parts])

    def flat(parts: Parts) -> Array:
        return np.concatenate([np.ravel(part) for part in kept(parts)])

    return Case(op, limit, lambda: flat(expected()), arguments, {}, flat, unit)


def _kept(rows: int, buffer: int | None, parts: Parts) -> Parts:
    """Of what a recurrent op leaves, the part that counts: pending rows of the last run, of the buffer they are in."""
    last = (rows - 1) % RUN + 1 if rows else 0
    if buffer is None:
        y, history, pending = parts
        return [y, history, pending[:last]]
    o, state, keys, decays, delta = parts
    filled = (buffer + -(-rows // RUN)) % 2
    return [o, state, keys[filled][:last], decays[filled][:last], delta[:last]]


def _kept_inputs(rows: int, parts: Parts) -> Parts:
    return [*_kept(rows, None, parts[:3]), *parts[3:]]


def _pages(rng: np.random.Generator, types: tuple[str, str], kv_heads: int, dim: int) -> tuple[Array, Array]:
    """K and V of five pages."""
    plain = _bytes(_normal(rng, 2, 5, kv_heads, 64, dim))
    k, v = np.split(plain, 2)
    return _as_pages(k, types[0], kv_heads, dim), _as_pages(v, types[1], kv_heads, dim)


def _as_pages(plain: NDArray[np.uint8], dtype: str, kv_heads: int, dim: int) -> Array:
    stored = plain if dtype == "F32" else np.asarray(ops.convert(plain, "F32", dtype))
    return stored.view(np.float32 if dtype == "F32" else np.uint16).reshape(-1, kv_heads, 64, dim)


def _appended(k: Array, v: Array, k_pages: Array, v_pages: Array, *rest: Any) -> Array:
    pages = k_pages.copy(), v_pages.copy()
    ops.kv_append(k, v, *pages, *rest)
    return np.concatenate([_bytes(part) for part in pages])


def _attention_inputs(
    u: Array, k: Array, v: Array, q_norm: Array, k_norm: Array, cos: Array, sin: Array, k_pages: Array, v_pages: Array,
    k_type: str, v_type: str, table: Array, n_past: int, eps: float,
) -> Parts:  # fmt: skip
    pages = k_pages.copy(), v_pages.copy()
    q, keys = (ops.rope(ops.rms_norm(x, w, eps), cos, sin) for x, w in ((u, q_norm), (k, k_norm)))
    ops.kv_append(keys, v, *pages, k_type, v_type, table, n_past)
    return [q, *map(_bytes, pages)]


def _as_floats(parts: Parts) -> Parts:
    """q, and pages of F32."""
    return [parts[0], *(pages.view(np.float32) for pages in parts[1:])]


def _moved(k_pages: Array, v_pages: Array, *rest: Any) -> Array:
    pages = k_pages.copy(), v_pages.copy()
    ops.kv_move(*pages, *rest)
    return np.concatenate([_bytes(part) for part in pages])


def _stacked(op: Callable[..., Any], *arguments: Any) -> Array:
    return np.stack(op(*arguments))


def _one() -> Array:
    return np.ones(())


def _path(rng: np.random.Generator, rows: int) -> NDArray[np.int32]:
    return np.flatnonzero(rng.integers(0, 2, rows)).astype(np.int32)


def _ancestors(parent: NDArray[np.int32]) -> NDArray[np.uint64]:
    masks = np.zeros(len(parent), np.uint64)
    for i, p in enumerate(parent):
        masks[i] = (masks[p] if p >= 0 else np.uint64(0)) | np.uint64(1 << i)
    return masks


def _runs(rows: int, accepted: Array) -> Iterator[tuple[slice, Array]]:
    """The runs of an append, and what of the run before each one accepts."""
    yield slice(0, min(rows, RUN)), accepted
    for first in range(RUN, rows, RUN):
        yield slice(first, min(rows, first + RUN)), np.arange(RUN, dtype=np.int32)


def _convolved(x: Array, w: Array, history: Array, pending: Array, accepted: Array) -> Parts:
    history, pending = history.copy(), pending.copy()
    y = [ops.causal_conv(x[run], w, history, pending, taken) for run, taken in _runs(len(x), accepted)]
    return [np.concatenate(y), history, pending]


def _prepared(qk: Array, g: Array, beta: Array, a_neg: Array, dt_bias: Array, heads: int, dk: int, eps: float) -> Parts:
    qk, g, beta = qk.copy(), g.copy(), beta.copy()
    q, k = (qk[:, i * heads * dk : (i + 1) * heads * dk].reshape(-1, heads, dk) for i in range(2))
    ops.delta_prepare(q, k, g, beta, a_neg, dt_bias, eps)
    return [qk, g, beta]


def _made_inputs(
    x: Array, w: Array, history: Array, pending: Array, g: Array, beta: Array, a_neg: Array, dt_bias: Array, heads: int,
    dk: int, eps: float, accepted: Array,
) -> Parts:  # fmt: skip
    y, history, pending = _convolved(x, w, history, pending, accepted)
    y, g, beta = _prepared(y, g, beta, a_neg, dt_bias, heads, dk, eps)
    return [y, history, pending, g, beta]


def _recurred(
    qkv: Array, g: Array, beta: Array, state: Array, keys: Array, decays: Array, delta: Array, buffer: int,
    accepted: Array, parent: Array | None, ancestors: Array | None, order: str,
) -> Parts:  # fmt: skip
    state, keys, decays, delta = state.copy(), keys.copy(), decays.copy(), delta.copy()
    kh, dk, (vh, dv) = *keys.shape[2:], delta.shape[1:]
    o = []
    for run, taken in _runs(len(qkv), accepted):
        q, k, v = np.split(qkv[run], (kh * dk, 2 * kh * dk), axis=1)
        rows = (q.reshape(-1, kh, dk), k.reshape(-1, kh, dk), v.reshape(-1, vh, dv), g[run], beta[run])
        pending = (keys[buffer], keys[1 - buffer], delta, decays[buffer], decays[1 - buffer])
        o.append(ops.gated_delta(*rows, state, *pending, taken, parent, ancestors, order))
        buffer = 1 - buffer
    return [np.concatenate(o), state, keys, decays, delta]


def _sampled(
    logits: Array, prompt: NDArray[np.int32], mask: NDArray[np.uint32] | None = None, **options: Any
) -> NDArray[np.int32]:
    sampler = Sampler(logits.shape[1], **options)
    sampler.set_prompt(prompt)
    sampler.set_mask(mask)
    return np.array([sampler.sample(row) for row in logits], np.int32)


def _tokens(result: Mapping[str, Array]) -> Array:
    return np.where(result["problems"] == 0, result["tokens"], -1)


def _terms(w: Array, dtype: str, x: Array) -> Array:
    """The sum of the absolute values of the terms of each product."""
    weights = np.asarray(ops.dequantize(w, dtype, _count(w, dtype))).reshape(-1, x.shape[1])
    return np.asarray(np.abs(x) @ np.abs(weights).T)


def _group_terms(weights: list[Array], dtypes: list[str], x: Array) -> Array:
    return _side_by_side([_terms(w, dtype, x) for w, dtype in zip(weights, dtypes, strict=True)])


def _alone(weights: list[Array], dtypes: list[str], n_out: list[int], n_in: int, x: Array, activations: str) -> Array:
    """Each product of a group by itself."""
    each = zip(weights, dtypes, n_out, strict=True)
    return _side_by_side([np.asarray(ops.linear(w, d, n, n_in, x, activations=activations)) for w, d, n in each])


def _converted(data: NDArray[np.uint8], start: str, end: str) -> NDArray[np.float32]:
    return _values(np.asarray(ops.convert(data, start, end)), end)


def _sum(words: Array) -> Array:
    """Modulo 2^32."""
    return np.asarray([np.asarray(words, np.uint32).sum(dtype=np.uint32)])


def _twice(op: Callable[..., Any], rows: int, *arguments: Any) -> Array:
    y = np.asarray(op(*arguments)).reshape(rows, -1)
    return np.concatenate([y, y])


def _meant(rows: int, result: Parts) -> Array:
    """Rows, then the same rows out of what they were rounded to: high and low codes, a scale a run of 32."""
    y = result[0].reshape(rows, -1)
    n = y.size
    high, low = result[1][: 2 * n].view(np.int8).astype(np.float32).reshape(2, -1, 32)
    scale = result[1][2 * n :].view(np.float32).reshape(2, -1, 1)[0]
    meant = scale * (high + low / 254)
    return np.concatenate([y, meant.reshape(rows, -1)])


def _side_by_side(results: list[Array]) -> Array:
    return np.concatenate(results, axis=-1)


def _normal(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return rng.standard_normal(shape, np.float32)


def _bytes(values: Array) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def _values(data: Array, dtype: str) -> NDArray[np.float32]:
    """Bytes of a plain type as fp32."""
    if dtype == "BF16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    values: NDArray[np.float32] = data.view(np.float16 if dtype == "F16" else np.float32).astype(np.float32)
    return values


def _count(w: Array, dtype: str) -> int:
    """Values in the bytes of weights."""
    block = BLOCKS[dtype]
    return w.size // block.bytes * block.values if block else w.size // (4 if dtype == "F32" else 2)


def _weights(rng: np.random.Generator, dtype: str, count: int) -> NDArray[np.uint8]:
    """The bytes of `count` random weights."""
    block = BLOCKS[dtype]
    if block is None:
        values = _normal(rng, count)
        return _bytes(values) if dtype == "F32" else np.asarray(ops.convert(_bytes(values), "F32", dtype))
    blocks = rng.integers(0, 256, (count // block.values, block.bytes), np.uint8)
    for at in block.scales:
        scale = rng.uniform(0.001, 0.01, (len(blocks), 1)).astype(np.float16)
        blocks[:, at : at + 2] = scale.view(np.uint8)
    if dtype == "MXFP4":
        blocks[:, 0] = rng.integers(116, 124, len(blocks))  # its exponents: scales of 2^-12 to 2^-5
    return blocks.reshape(-1)
