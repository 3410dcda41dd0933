"""The scores of a prompt's tokens in fp64: softmax weights of its last rows, the largest of all heads and layers."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from reference.rms_norm import F64, wide


def key_scores(q: ArrayLike, k: ArrayLike, scale: float) -> F64:
    """q [rows, heads, dim], of the last rows of k [slots, kv_heads, dim]: the largest softmax weight of each slot among
    the heads, [rows, slots]. A row sees the slots up to itself."""
    rows, slots = len(wide(q)), len(wide(k))
    group = wide(q).shape[1] // wide(k).shape[1]
    scores = np.einsum("rhd,shd->hrs", wide(q), np.repeat(wide(k), group, 1)) * float(np.float32(scale))
    future = np.arange(slots)[None, :] > slots - rows + np.arange(rows)[:, None]
    weights = np.exp(np.where(future, -np.inf, scores - np.where(future, -np.inf, scores).max(-1, keepdims=True)))
    largest: F64 = (weights / weights.sum(-1, keepdims=True)).max(0)
    return largest
