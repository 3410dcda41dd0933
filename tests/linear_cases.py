"""Matrix products of random weights, and the comparison of their results with fp64."""

from __future__ import annotations

import numpy as np
from lucebox.selftest import shapes
from numpy.typing import NDArray
from reference import linear as reference
from reference.linear import PLAIN_TYPES, random_weights
from tolerances import distance, tolerance

F32, F64 = NDArray[np.float32], NDArray[np.float64]
Bytes = NDArray[np.uint8]


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.normal(size=shape).astype(np.float32)


def shapes_of(dtype: str) -> list[tuple[int, int]]:
    """(n_out, n_in) of products of a type."""
    values = 1 if dtype in PLAIN_TYPES else reference.block_size(dtype)[0]
    values = values if values in shapes.PRODUCTS else 256
    return [(n_out, blocks * values) for n_out, blocks in shapes.PRODUCTS[values]]


def check(got: F32, want: F64, scale: F64, family: str, what: str, moved: F64 | float = 0) -> None:
    """moved: the change of an element from values that may round either way."""
    assert np.isfinite(got).all(), what
    error = got - want
    error = np.sign(error) * np.maximum(np.abs(error) - moved, 0)
    if got.size >= 64:  # of a few outputs, all may be what is left of terms that cancel
        diff = distance(want + error, want)
        assert diff < tolerance(family, "diff"), f"{what}: diff {diff:.2e}"
    worst = (np.abs(error) / (scale + 1e-30)).max()
    assert worst < tolerance(family, "element"), f"{what}: element {worst:.2e}"


def group(
    rng: np.random.Generator, dtypes: list[str], n_out: list[int], n_in: int, rows: int
) -> tuple[list[Bytes], F32, list[F32]]:
    """The weights of products, their x, and what is added to each."""
    weights = [random_weights(dtype, n * n_in, rng) for dtype, n in zip(dtypes, n_out, strict=True)]
    return weights, normal(rng, rows, n_in), [normal(rng, rows, n) for n in n_out]


def extreme_codes(dtype: str, rows: int) -> list[tuple[Bytes, F32]]:
    """Weights [1, 256] whose codes are all 0, the largest or the smallest, and the x that narrow sums would clip."""
    n_in = 256
    values, n_bytes = reference.block_size(dtype)
    cases = []
    for fill in (0x00, 0x7F, 0x80, 0xFF):
        block = np.full((n_in // values, n_bytes), fill, np.uint8)
        for at in reference.F16_AT[dtype]:
            block[:, at : at + 2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
        if dtype == "MXFP4":
            block[:, 0] = 128  # a scale of 1
        if dtype == "NVFP4":
            block[:, :4] = 56  # likewise
        cases.append((block.reshape(-1), np.full((rows, n_in), -3.0, np.float32)))
    return cases
