"""Cases of mixtures of experts: routing, the weighted sums of the chosen experts' networks, and biases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from lucebox.selftest import shapes
from lucebox.selftest.case import Array, Case, Parts, case, row_unit
from lucebox.selftest.inputs import BLOCKS, normal, weights_of
from lucebox.selftest.products import linear_of_device

__all__ = ["mixtures", "routes"]

_TERMS, _MIN_GROUPED_ROWS = 64, 17
_TYPES = (
    *("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"),
    *("MXFP4", "IQ4_NL", "IQ4_XS", "NVFP4", "F8_E4M3"),
)


def routes(rng: np.random.Generator) -> Iterator[Case]:
    """Logits with many ties: equal ones go to the lower index on every device."""
    for (rows, n, k), is_normalized in product(shapes.ROUTES, (1, 0)):
        arguments = (rng.integers(-6, 6, (rows, n)).astype(np.float32), k, is_normalized)
        yield case("route_experts", "exact", *arguments, kept=_experts)
        yield case("route_experts", "row", *arguments, kept=_weights, unit=1.0)
        yield case("route_experts", "exact", *arguments, rng.integers(-6, 6, n).astype(np.float32), kept=_experts)
        yield case(
            "route_experts", "row", *arguments, None, rng.uniform(0.5, 1, n).astype(np.float32), kept=_weights, unit=1.0
        )


def mixtures(rng: np.random.Generator) -> Iterator[Case]:
    for dtype, (rows, k, n, *blocks, odd) in product(_TYPES, shapes.MIXTURES):
        block = BLOCKS[dtype]
        dim, ffn = (b * (block.values if block else 32) + (0 if block else odd) for b in blocks)
        gate, up, down = (weights_of(rng, dtype, n * dim * ffn) for _ in range(3))
        experts = np.array([rng.permutation(n)[:k] for _ in range(rows)], np.int32)
        given = (dtype,) * 3, n, ffn, normal(rng, rows, dim), experts, normal(rng, rows, k)
        around = (*normal(rng, 1, rows, dim), normal(rng, rows), *normal(rng, 1, rows, dim))
        biases = (normal(rng, n, ffn), normal(rng, n, ffn), normal(rng, n, dim))
        joined = np.concatenate([gate.reshape(n, -1), up.reshape(n, -1)], axis=1).reshape(-1)
        for activations in ("int8", "f32") if block else ("f32",):
            is_fp8 = (dtype, activations) == ("F8_E4M3", "int8")  # the CPU does not round x
            # x and act() are rounded to 16 bits
            is_cast = rows >= _MIN_GROUPED_ROWS and (dtype in ("F16", "BF16") or is_fp8)
            limit = "half" if is_cast else "sum" if block is None else "int16" if activations == "f32" else "int8"
            for case_of in (
                partial(case, "mix_experts", limit, gate, up, down, *given, *around),
                partial(case, "mix_experts", limit, joined, None, down, *given, biases=biases, clamp=0.7),
                partial(case, "mix_experts", limit, joined, None, down, *given, *around, is_gelu=True),
            ):
                reference = _rounded_mixture if is_fp8 and not is_cast else None
                yield _by_terms(case_of(activations=activations, reference=reference))
    for rows, dim in shapes.BIASES:
        yield case("add_bias", "exact", normal(rng, rows, dim), normal(rng, dim))


def _rounded_mixture(
    gate: Array, up: Array | None, down: Array, types: tuple[str, str, str], n: int, ffn: int, x: Array, experts: Array,
    weights: Array, shared: Array | None = None, shared_gate: Array | None = None, add: Array | None = None, *,
    biases: tuple[Array, Array, Array] | None = None, clamp: float = 0.0, activations: str, is_gelu: bool = False,
) -> Array:  # fmt: skip
    """The mixture from the CPU's products of its parts, which round x and act() as a device does."""
    rows, dim = x.shape
    y = np.zeros((rows, dim)) if add is None else add.astype(np.float64)
    if shared is not None and shared_gate is not None:
        y += shared * _sigmoid(shared_gate[:, None])
    first = np.concatenate([gate.reshape(n, -1), up.reshape(n, -1)], axis=1) if up is not None else gate.reshape(n, -1)
    for row, j in np.ndindex(experts.shape):
        expert = experts[row, j]
        sums = linear_of_device(first[expert], types[0], 2 * ffn, dim, x[row : row + 1], None, activations=activations)
        g, u = sums[0, :ffn], sums[0, ffn:]
        if biases is not None:
            g, u = g + biases[0][expert], u + biases[1][expert]
        if clamp:
            g = np.minimum(g, clamp)
            act = g * _sigmoid(1.702 * g) * (np.clip(u, -clamp, clamp) + 1)
        elif is_gelu:
            act = g * _sigmoid(1.5957691216 * (g + 0.044715 * g**3)) * u
        else:
            act = g * _sigmoid(g) * u
        act = act.astype(np.float32)[None]
        part = linear_of_device(down.reshape(n, -1)[expert], types[2], dim, ffn, act, None, activations=activations)[0]
        y[row] += weights[row, j] * (part if biases is None else part + biases[2][expert])
    return y.astype(np.float32)


def _sigmoid(x: Array) -> Array:
    return 0.5 + 0.5 * np.tanh(0.5 * x.astype(np.float64))


def _by_terms(whole: Case) -> Case:
    """Units of what the terms of the sums may be larger than the sums, and a code of act() than its share of a row."""
    return replace(whole, unit=lambda: _TERMS * row_unit(whole.collect(whole.reference())))


def _experts(parts: Parts) -> Parts:
    return parts[:1]


def _weights(parts: Parts) -> Parts:
    return parts[1:2]
