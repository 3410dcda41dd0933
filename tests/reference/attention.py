"""Attention in fp64 over plain arrays: no pages, no tiles, the whole softmax at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from reference.rms_norm import F64, sigmoid, wide


def round_to(x: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """x as the cache holds it: rounded to nearest even."""
    if dtype == "F16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float32)
    if dtype == "BF16":
        bits = x.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)
    return x


def visible(
    rows: int, n_past: int, ancestors: NDArray[np.uint64] | None, first_slot: int = 0, window: int = 0
) -> NDArray[np.bool_]:
    """[rows, n_past + rows]: committed slots in the row's window, and of the new ones those up to the row, or those of
    its word; no committed slot before first_slot."""
    mask = np.ones((rows, n_past + rows), bool)
    for r in range(rows):
        for j in range(rows):
            mask[r, n_past + j] = j <= r if ancestors is None else bool(int(ancestors[r]) >> j & 1)
        for s in range(n_past):
            mask[r, s] = window == 0 or s > n_past + r - window
    mask[:, : min(first_slot, n_past)] = False
    return mask


def rounded_attention(q: ArrayLike, k: ArrayLike, v: ArrayLike, scale: float, mask: NDArray[np.bool_]) -> F64:
    """attention() over the f16 operands of a GPU's matrix units: keys, values, and queries times scale and log2(e)."""
    exponents_of_2 = np.asarray(q, np.float32) * (np.float32(scale) * np.float32(np.log2(np.e)))
    queries, keys, values = (wide(np.asarray(x, np.float16)) for x in (exponents_of_2, k, v))
    return attention(queries * np.log(2), keys, values, 1, mask)


def attention(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, scale: float, mask: NDArray[np.bool_], gate: ArrayLike | None = None
) -> F64:
    """q [rows, heads, dim], k and v [slots, kv_heads, dim]; query head h reads KV head h // (heads / kv_heads)."""
    group = wide(q).shape[1] // wide(k).shape[1]
    keys, values = np.repeat(wide(k), group, 1), np.repeat(wide(v), group, 1)
    scores = np.where(mask[:, None], np.einsum("rhd,shd->rhs", wide(q), keys) * float(np.float32(scale)), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    o = np.einsum("rhs,shd->rhd", weights / weights.sum(-1, keepdims=True), values)
    return o if gate is None else o * sigmoid(gate)
