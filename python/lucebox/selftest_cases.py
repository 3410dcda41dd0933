"""The cases of `lucebox selftest`: every op in odd sizes on fresh random inputs, and the table of how far a device may
be from the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lucebox._engine import ops

__all__ = ["LIMITS", "Case", "Limit", "cases"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Limit:
    """How far a value may be from the CPU's, in units of its case."""

    error: float
    reason: str


LIMITS = {
    "exact": Limit(0, "nothing is computed, or the rounding is defined"),
    "rope": Limit(1e-6, "two products and a sum, fused or not"),
    "row": Limit(1e-5, "fp32 sums in another order, and the chip's own root, exponential and reciprocal (2 ulp each)"),
    "sum": Limit(1e-6, "fp32 sums of up to 17408 terms in another order"),
    "matrix": Limit(1e-5, "matrix units add exact 16-bit products in fp32 and may cut what they shift out"),
    "half": Limit(8e-3, "both operands are rounded to bf16, 2^-9 each, and one term may be all of a sum"),
    "int16": Limit(1e-4, "a device keeps 16 bits of an x that meets quantised weights"),
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

    @property
    def label(self) -> str:
        words = [*map(_word, self.arguments), *(f"{name}={_word(value)}" for name, value in self.options.items())]
        return f"{self.op}({', '.join(words)})"


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
    "Q4_K": BlockType(256, 144, (0, 2)),
    "Q6_K": BlockType(256, 210, (208,)),
}
# (n_out, n_in): fewer rows than a block takes, odd counts of rows and of blocks, rows too long for one piece a thread.
PRODUCTS = ((1, 256), (3, 768), (67, 1280), (5, 17408))
ROW_COUNTS = (1, 2, 5)
# (n_out, n_in): tiles of 128 outputs, in shares of several blocks; rows: every kernel's, and between them.
BATCHES = ((3, 256), (130, 768), (5, 17408))
BATCH_ROWS = (2, 13, 22, 32, 47, 64, 130)


def cases(rng: np.random.Generator) -> Iterator[Case]:
    """Every case."""
    yield from _embeds(rng)
    yield from _norms(rng)
    yield from _products(rng)
    yield from _groups(rng)
    yield from _batches(rng)
    yield from _elementwise(rng)
    yield from _rows(rng)
    yield from _conversions(rng)
    yield from _reads(rng)


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


def _groups(rng: np.random.Generator) -> Iterator[Case]:
    """Products of several types."""
    n_out, n_in = [67, 3, 130], 768
    for dtypes, activations, limit in (
        (["Q4_K", "Q6_K", "Q8_0"], "int8", "int8"),
        (["Q4_0", "Q4_K", "Q6_K"], "f32", "int16"),
        (["F32", "BF16", "F16"], "f32", "sum"),
    ):
        weights = [_weights(rng, dtype, n * n_in) for dtype, n in zip(dtypes, n_out, strict=True)]
        x = _normal(rng, 3, n_in)

        arguments, options = (weights, dtypes, n_out, n_in, x), {"activations": activations}
        alone = partial(_alone, *arguments, activations)
        unit = partial(_group_terms, weights, dtypes, x)
        yield Case("linear_group", limit, alone, arguments, options, _side_by_side, unit)


def _batches(rng: np.random.Generator) -> Iterator[Case]:
    """Products with many rows of x on matrix units: 16-bit weights, and quantised ones from 65 rows on, meet an x
    rounded to 16 bits."""
    for dtype, block in BLOCKS.items():
        for n_out, n_in in BATCHES:
            w = _weights(rng, dtype, n_out * n_in)
            for rows in BATCH_ROWS:
                x, add = _normal(rng, rows, n_in), _normal(rng, rows, n_out) if rows % 2 else None
                unit = partial(_terms, w, dtype, x)
                for activations in ("int8", "f32") if block else ("f32",):
                    is_wide = activations == "int8" and rows > 64
                    limit = "half" if is_wide else "int8" if activations == "int8" else "int16"
                    exact, given = "f32" if is_wide else activations, x
                    if not block:
                        limit = "matrix"
                        given = x if dtype == "F32" else _converted(_bytes(x), "F32", dtype).reshape(x.shape)
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


def _rows(rng: np.random.Generator) -> Iterator[Case]:
    """Whole rows in one block, and over a grid with its barrier."""
    for rows, dim in ((1, 1), (3, 1021), (2, 32_003)):
        x, ties = _normal(rng, rows, dim), rng.integers(0, 9, (rows, dim)).astype(np.float32)
        for grid in (False, True):
            yield Case("softmax", "row", partial(ops.softmax, x, 0.7), (x, 0.7), {"grid": grid})
            yield Case("arg_max", "exact", partial(ops.arg_max, x), (x,), {"grid": grid})
            yield Case("arg_max", "exact", partial(ops.arg_max, ties), (ties,), {"grid": grid})


def _conversions(rng: np.random.Generator) -> Iterator[Case]:
    """Any bits: infinities, NaN and subnormal numbers too."""
    for start, width in (("F32", 4), ("F16", 2), ("BF16", 2)):
        bits = rng.integers(0, 256, 4099 * width, np.uint8)
        for end in ("F32", "F16", "BF16"):
            values = partial(_values, dtype=end)
            if end != start:
                expected = partial(_converted, bits, start, end)
                yield Case("convert", "exact", expected, (bits, start, end), {}, values)


def _reads(rng: np.random.Generator) -> Iterator[Case]:
    for size in (16, 1_000_016):
        x = rng.integers(0, 256, size, np.uint8)
        yield Case("read_memory", "exact", partial(_sum, x.view(np.uint32)), (x,), {}, _sum)


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
    return blocks.reshape(-1)
