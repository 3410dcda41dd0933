"""Cases of mixtures of experts: routing, products of chosen experts, weighted sums."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from lucebox.selftest import shapes
from lucebox.selftest.case import Case, Parts, case
from lucebox.selftest.inputs import BLOCKS, normal, weights_of

__all__ = ["mixtures", "routes"]

_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "IQ4_XS", "NVFP4")


def routes(rng: np.random.Generator) -> Iterator[Case]:
    """Logits with many ties: equal ones go to the lower index on every device."""
    for (rows, n, k), is_normalized in product(shapes.ROUTES, (1, 0)):
        arguments = (rng.integers(-6, 6, (rows, n)).astype(np.float32), k, is_normalized)
        yield case("route_experts", "exact", *arguments, kept=_experts)
        yield case("route_experts", "row", *arguments, kept=_weights, unit=1.0)


def mixtures(rng: np.random.Generator) -> Iterator[Case]:
    for dtype, (rows, k, n, blocks, n_out, expert_rows, first_row) in product(_TYPES, shapes.EXPERT_PRODUCTS):
        block = BLOCKS[dtype]
        n_in = blocks * (32 if block is None else block.values)
        w = weights_of(rng, dtype, n * expert_rows * n_in)
        experts = np.array([rng.permutation(n)[:k] for _ in range(rows)], np.int32)
        for x in (normal(rng, rows, n_in), normal(rng, rows, k, n_in)):
            for activations in ("f32",) if block is None else ("int8", "f32"):
                limit = "sum" if block is None else "int16" if activations == "f32" else "int8"
                yield case("expert_linear", limit, w, dtype, n, n_out, x, experts, first_row, expert_rows,
                           activations=activations)  # fmt: skip
    for rows, k, dim in shapes.COMBINATIONS:
        x, weights, shared, add = normal(rng, rows, k, dim), normal(rng, rows, k), *normal(rng, 2, rows, dim)
        yield case("combine_experts", "row", x, weights)
        yield case("combine_experts", "row", x, weights, shared, normal(rng, rows), add)


def _experts(parts: Parts) -> Parts:
    return parts[:1]


def _weights(parts: Parts) -> Parts:
    return parts[1:2]
