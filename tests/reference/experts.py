"""Mixtures of experts in fp64: routing, products of chosen experts, weighted sums."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def route(logits: F32, k: int, is_normalized: bool) -> tuple[NDArray[np.int32], F64]:
    """(experts [rows, k], weights [rows, k]), by descending logit; ties go to the lower index."""
    experts = np.argsort(-logits, axis=1, kind="stable")[:, :k].astype(np.int32)
    wide = logits.astype(np.float64)
    e = np.exp(wide - wide.max(axis=1, keepdims=True))
    chosen = np.take_along_axis(e, experts, axis=1)
    return experts, chosen / (chosen if is_normalized else e).sum(axis=1, keepdims=True)


def combine(x: F32, weights: F32, shared: F32 | None, shared_gate: F32 | None, add: F32 | None) -> tuple[F64, F64]:
    """(y [rows, dim], the sums of the absolute values of its terms); x [rows, k, dim]."""
    terms = x.astype(np.float64) * weights.astype(np.float64)[..., None]
    y, scale = terms.sum(axis=1), np.abs(terms).sum(axis=1)
    for term in (
        None
        if shared is None
        else shared * (1 if shared_gate is None else 1 / (1 + np.exp(-np.float64(shared_gate))))[..., None],
        add,
    ):
        if term is not None:
            y, scale = y + term, scale + np.abs(term)
    return y, scale
