"""Mixtures of experts in fp64: routing, and the weighted sum of the chosen experts' networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from reference.activations import geglu
from reference.attention import round_to
from reference.linear import PLAIN_TYPES, decode, quantize_q8
from reference.rms_norm import silu

Bytes = NDArray[np.uint8]
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def route(
    logits: F32, k: int, is_normalized: bool, scale: F32 | None = None
) -> tuple[NDArray[np.int32], F64]:  # fmt: skip
    """(experts [rows, k], weights [rows, k]), by descending logit; ties go to the lower index. scale: [experts] of the
    weights."""
    experts = np.argsort(-logits, axis=1, kind="stable")[:, :k].astype(np.int32)
    wide = logits.astype(np.float64)
    e = np.exp(wide - wide.max(axis=1, keepdims=True))
    chosen = np.take_along_axis(e, experts, axis=1)
    weights = chosen / (chosen if is_normalized else e).sum(axis=1, keepdims=True)
    return experts, weights if scale is None else weights * scale.astype(np.float64)[experts]


@dataclass(frozen=True)
class Experts:
    """The bytes of gate, up and down of all experts, [n, bytes of a matrix], their types and biases."""

    matrices: tuple[Bytes, Bytes, Bytes]
    types: tuple[str, str, str]
    ffn: int
    biases: tuple[F32, F32, F32] | None = None
    limit: float = 0.0
    is_gelu: bool = False

    @cached_property
    def values(self) -> list[F64]:
        """[n, n_out, n_in] of each matrix."""
        sizes = (self.ffn, self.ffn, -1)
        decoded = [decode(w.reshape(-1), dtype) for w, dtype in zip(self.matrices, self.types, strict=True)]
        n = len(self.matrices[0])
        dim = decoded[0].size // (n * self.ffn)
        return [
            w.reshape(n, dim if n_out < 0 else n_out, -1).astype(np.float64)
            for w, n_out in zip(decoded, sizes, strict=True)
        ]

    def activate(self, gate: F64, up: F64) -> F64:
        if self.is_gelu:
            return geglu(gate, up)
        if self.limit == 0:
            return silu(gate) * up
        g = np.minimum(gate, self.limit)
        return g / (1 + np.exp(-1.702 * g)) * (np.clip(up, -self.limit, self.limit) + 1)


def mix(
    own: Experts, x: F32, experts: NDArray[np.int32], weights: F32, shared: F32 | None, shared_gate: F32 | None,
    add: F32 | None, activations: str, halves: Mapping[str, str],
) -> tuple[F64, F64, F64]:  # fmt: skip
    """(y [rows, dim], the sums of the absolute values of its terms, each row's distance of act() in codes from where
    its rounding to 8 bits could go to either side). halves: the 16-bit type to which a type's weights and their x
    are rounded."""
    rounds = [activations == "int8" and dtype not in {*PLAIN_TYPES, *halves} for dtype in own.types]
    n_rows, k = experts.shape
    chosen = experts.reshape(-1)

    def times(values: F64, w: F64) -> F64:
        """Each choice's values times the matrix of its expert."""
        sums = np.empty((len(chosen), w.shape[1]))
        for expert in np.unique(chosen):
            sums[chosen == expert] = values[chosen == expert] @ w[expert].T
        return sums

    def product(i: int, inputs: F32) -> tuple[F64, F64]:
        values, w = inputs.astype(np.float64), own.values[i]
        if rounds[i]:
            codes, scale = quantize_q8(inputs)
            values = codes.astype(np.float64) * np.repeat(scale.astype(np.float64), 32, axis=1)
        elif own.types[i] in halves:
            values, w = (
                round_to(np.ascontiguousarray(one, np.float32), halves[own.types[i]]).astype(np.float64)
                for one in (inputs, w)
            )
        bias = 0.0 if own.biases is None else own.biases[i][chosen]
        return times(values, w) + bias, times(np.abs(values), np.abs(w)) + np.abs(bias)

    (gate, gate_size), (up, up_size) = (product(i, np.repeat(x, k, axis=0)) for i in range(2))
    act = own.activate(gate, up)
    margins = np.full(n_rows, np.inf)
    if rounds[2]:
        blocks = np.abs(act).reshape(-1, 32)
        codes = blocks / blocks.max(axis=1, keepdims=True) * 127
        margins = np.abs(codes % 1 - 0.5).reshape(n_rows, -1).min(axis=1)
    part, part_size = product(2, act.astype(np.float32))
    # The slopes of all forms of act() are below 2; the sums of gate and up have errors of their own.
    act_size = 2 * gate_size * np.maximum(up_size, 1) + np.abs(act)
    part_size = part_size + times(act_size, np.abs(own.values[2]))
    by_choice = weights.astype(np.float64)[..., None]
    y = (by_choice * part.reshape(n_rows, k, -1)).sum(axis=1)
    scale = (np.abs(by_choice) * part_size.reshape(n_rows, k, -1)).sum(axis=1)
    factor = 1 if shared_gate is None else 1 / (1 + np.exp(-np.float64(shared_gate)))[:, None]
    for term in (None if shared is None else shared * factor, add):
        if term is not None:
            y, scale = y + term, scale + np.abs(term)
    return y, scale, margins
