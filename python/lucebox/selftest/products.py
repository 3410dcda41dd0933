"""Cases of matrix products: GEMV, skinny GEMM and GEMM of every weight type, groups of products, the megakernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from lucebox import _kernels
from lucebox.selftest.case import Array, Case, Parts, case
from lucebox.selftest.inputs import (
    BLOCKS,
    as_fp32,
    converted,
    n_values,
    normal,
    rounded_to_fp4,
    rounded_to_fp8,
    weights_of,
)
from lucebox.selftest.ops import linear, linear_group, rms_norm

# (n_out, n_in): fewer outputs than a thread block computes, odd numbers of outputs and of quantisation blocks, and rows
# too long for one piece per thread.
PRODUCTS = ((1, 256), (3, 768), (67, 1280), (5, 17408))
ROW_COUNTS = (1, 2, 5)  # more than one: without skinny GEMM, of types without a tiled GEMM
# (n_out, n_in): tiles of 128 outputs, split over several thread blocks. Rows: the tile sizes of every kernel, and sizes
# between them.
GEMMS = ((3, 256), (130, 768), (5, 17408))
GEMM_ROWS = (2, 22, 13, 32, 47, 130, 64)
# Types with a tiled GEMM. They also have a skinny GEMM, which is preferred.
TILES = ("Q8_0", "Q4_0", "Q4_K", "Q6_K", "F16", "BF16")
# Types without a GEMM of their own: their weights are expanded to 16 bits.
EXPANDED = ("Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q5_K", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4", "F8_E4M3")
MIN_EXPANDED_ROWS = 12
PAIRED, PAIR_ROWS = ("Q4_K", "Q5_K"), (2, 13, 22, 32)  # types whose skinny GEMM can be paired with Q6_K
SHARED = ("Q4_K", "Q6_K")  # types whose GEMV stages weights in shared memory
# Kernels to remove, so that one warpgroup tile remains at a time, or none.
PREFERRED = (("256x64", "128x128"), ("256x128", "128x128"), ("gemm_sm90",))
# Kernels for prompts of FP8 weights. A pack has those of one chip, sim's has all.
FP8_GEMMS = ("gemm_sm90_f8_e4m3_256x128", "gemm_sm90_f8_e4m3_128x128", "gemm_sm89_f8_e4m3", "gemm_sm120_f8_e4m3")


def products(rng: np.random.Generator) -> Iterator[Case]:
    for dtype, block in BLOCKS.items():
        for n_out, n_in in PRODUCTS:
            w = weights_of(rng, dtype, n_out * n_in)
            for rows in ROW_COUNTS if dtype in (*EXPANDED, "F32") else (1,):
                x = normal(rng, rows, n_in)
                add = normal(rng, rows, n_out) if rows % 2 else None
                for activations, limit in (("f32", "int16"), ("int8", "int8")) if block else (("f32", "sum"),):
                    unit = partial(_terms, w, dtype, x)
                    without = ("gemm_skinny",) if rows > 1 else ()
                    yield case("linear", limit, w, dtype, n_out, n_in, x, add, reference=linear_of_device, unit=unit,
                               without=without, activations=activations)  # fmt: skip
    for dtype in SHARED:
        kernel = f"gemv_{dtype.lower()}_int8"
        for n_out, n_in in ((38, 5120), (4, 17408)):  # Q6_K: computed in pairs of rows
            w, x, add = weights_of(rng, dtype, n_out * n_in), normal(rng, 1, n_in), normal(rng, 1, n_out)
            unit = partial(_terms, w, dtype, x)
            for names in ((), ("", "_wide"), ("_ring", "_whole")):
                absent = tuple(f"{kernel}{name}_kernel" for name in names)
                yield case("linear", "int8", w, dtype, n_out, n_in, x, add, unit=unit, without=absent)


def groups(rng: np.random.Generator) -> Iterator[Case]:
    """Product groups: several weight types, one x."""
    n_out, n_in = [67, 3, 130], 768
    for dtypes, activations, limit in (
        (["Q4_K", "Q6_K", "Q8_0"], "int8", "int8"),
        (["Q2_K", "Q5_K", "Q2_K"], "int8", "int8"),
        (["Q4_0", "Q4_K", "Q6_K"], "f32", "int16"),
        (["F32", "BF16", "F16"], "f32", "sum"),
    ):
        weights = [weights_of(rng, dtype, n * n_in) for dtype, n in zip(dtypes, n_out, strict=True)]
        group = weights, dtypes, n_out, n_in, normal(rng, 1, n_in)
        yield _group(limit, activations, activations, *group)


def gemms(rng: np.random.Generator, wide: str, fp8: Sequence[str]) -> Iterator[Case]:
    """Products on matrix units: skinny GEMM, GEMM, and pairs of types. fp8: the pack's part of FP8_GEMMS."""
    without_fp8 = [tuple(other for other in fp8 if other != one) for one in fp8]
    for dtype in BLOCKS:
        is_fp8 = bool(fp8) and dtype == "F8_E4M3"
        for i, rows in enumerate(GEMM_ROWS):
            yield from _gemm(rng, wide, dtype, GEMMS[i % len(GEMMS)], rows, is_fp8=is_fp8)
        for without in without_fp8 if is_fp8 else PREFERRED:
            for one in _gemm(rng, wide, dtype, (130, 768), 65, is_fp8=is_fp8):
                yield replace(one, without=without)
    for shape in GEMMS:
        yield _fp4_gemm(rng, shape, 130)
    for dtype in TILES:
        for rows in GEMM_ROWS:
            for one in _gemm(rng, wide, dtype, (130, 768), rows):
                yield replace(one, without=("gemm_skinny",), limit="int8" if one.limit == "skinny" else one.limit)
    for dtype in PAIRED:
        for rows in PAIR_ROWS:
            is_expanded = dtype in EXPANDED and rows >= MIN_EXPANDED_ROWS
            dtypes, n_out, n_in = [dtype, "Q6_K", dtype], [67, 130, 3], 768
            weights = [weights_of(rng, one, n * n_in) for one, n in zip(dtypes, n_out, strict=True)]
            group = weights, dtypes, n_out, n_in, normal(rng, rows, n_in)
            limit, exact = ("half", "f32") if is_expanded else ("skinny", "int8")
            yield _group(limit, exact, "int8", *group)


def _group(
    limit: str, exact: str, activations: str, weights: list[Array], dtypes: list[str], n_out: list[int], n_in: int,
    x: Array,
) -> Case:  # fmt: skip
    """Products of one x. exact: the activations of the CPU's."""

    def reference(*_: Any, **__: Any) -> list[Array]:
        return linear_group(weights, dtypes, n_out, n_in, x, activations=exact)

    def unit() -> Array:
        return _side_by_side([_terms(w, dtype, x) for w, dtype in zip(weights, dtypes, strict=True)])[0]

    return case("linear_group", limit, weights, dtypes, n_out, n_in, x, reference=reference, kept=_side_by_side,
                unit=unit, activations=activations)  # fmt: skip


def _gemm(
    rng: np.random.Generator, wide: str, dtype: str, shape: tuple[int, int], rows: int, *, is_fp8: bool = False
) -> Iterator[Case]:
    """Cases of one shape. x is rounded to 16 bits for 16-bit weights, for quantised weights from 65 rows on, and for
    expanded weights; to fp8 from 65 rows on if the weights are multiplied as fp8."""
    n_out, n_in = shape
    w, x = weights_of(rng, dtype, n_out * n_in), normal(rng, rows, n_in)
    add = normal(rng, rows, n_out) if rows % 2 else None
    unit = partial(_terms, w, dtype, x)
    for activations in ("int8", "f32") if BLOCKS[dtype] else ("f32",):
        is_expanded = dtype in EXPANDED and rows >= MIN_EXPANDED_ROWS
        is_wide = activations == "int8" and (rows > 64 or is_expanded)
        limit = "half" if is_wide else "int16" if activations == "f32" else "skinny"
        exact, given = "f32" if is_wide else activations, x
        if not BLOCKS[dtype]:
            limit = "matrix"
            rounded = wide if dtype == "BF16" else dtype
            given = as_fp32(converted(x, rounded), rounded).reshape(x.shape)
        if is_fp8 and activations == "int8" and rows > 64:
            limit, given = "fp8", rounded_to_fp8(x)
        expected = partial(linear_of_device, w, dtype, n_out, n_in, given, add, activations=exact)
        arguments, options = (w, dtype, n_out, n_in, x, add), {"activations": activations}
        yield Case("linear", limit, arguments, options, expected, unit=unit)


def _fp4_gemm(rng: np.random.Generator, shape: tuple[int, int], rows: int) -> Case:
    """A prompt of NVFP4 weights with x in NVFP4, where the pack has the kernel."""
    n_out, n_in = shape
    w, x = weights_of(rng, "NVFP4", n_out * n_in), normal(rng, rows, n_in)
    expected = partial(linear, w, "NVFP4", n_out, n_in, rounded_to_fp4(x), None, activations="f32")
    unit = partial(_terms, w, "NVFP4", x)
    return Case("linear", "matrix", (w, "NVFP4", n_out, n_in, x, None), {"activations": "fp4"}, expected, unit=unit)


def megakernels(rng: np.random.Generator) -> Iterator[Case]:
    """A norm and a GEMV as one phase, in each megakernel. The simulator's pack has both kinds: weights by bulk copy,
    and weights by direct load."""
    streamed = ("megakernel_plain_kernel", "megakernel_32_kernel", "megakernel_256_kernel")
    for dtype in ("BF16", "Q5_0", "Q4_K"):
        for n_out, n_in, without in ((131, 256, ()), (517, 2048, ()), (131, 256, streamed), (517, 2048, streamed)):
            x, norm, w = normal(rng, n_in), normal(rng, n_in), weights_of(rng, dtype, n_out * n_in)
            normed = rms_norm(x.reshape(1, 1, -1), norm, 0.03).reshape(1, -1)
            expected = partial(linear, w, dtype, n_out, n_in, normed, None, activations="int8")
            limit = "row" if dtype == "BF16" else "int8"
            unit = partial(_terms, w, dtype, normed)
            given = (x, norm, 0.03, w, dtype, n_out)
            yield Case("megakernel", limit, given, {}, expected, _as_row, unit, without)


def linear_of_device(
    w: Array, dtype: str, n_out: int, n_in: int, x: Array, add: Array | None, *, activations: str
) -> Array:  # fmt: skip
    """The CPU's product, of rounded x for FP8: the CPU multiplies the x of FP8 as it is, a device rounds it."""
    if dtype == "F8_E4M3" and activations == "int8":
        q, scale, _ = _kernels.weights.quantize_q8(x)
        x = (q * np.repeat(scale, 32, axis=1))[:, :n_in].astype(np.float32)
    y: Array = linear(w, dtype, n_out, n_in, x, add, activations=activations)
    return y


def _as_row(parts: Parts) -> Parts:
    return [parts[0].reshape(1, -1)]


def _terms(w: Array, dtype: str, x: Array) -> Array:
    """[rows, n_out]: the sum of the absolute values of the terms of each dot product."""
    weights = np.asarray(_kernels.weights.dequantize(w, dtype, n_values(w, dtype))).reshape(-1, x.shape[1])
    return np.asarray(np.abs(x) @ np.abs(weights).T)


def _side_by_side(parts: Parts) -> Parts:
    return [np.concatenate(parts, axis=-1)]
