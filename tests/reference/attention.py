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
    rows: int,
    n_past: int,
    ancestors: NDArray[np.uint64] | None,
    first_slot: int = 0,
    window: int = 0,
    parent: NDArray[np.int32] | None = None,
    last_seen: NDArray[np.int32] | None = None,
) -> NDArray[np.bool_]:
    """[rows, n_past + rows]: the slots that each row sees. Committed slots: from first_slot on, in the row's window. A
    chain's new slots: up to the row, or up to last_seen of the row, in its window; a tree's: the row's ancestors, which
    no window hides. A row of a tree has the window of its depth."""
    mask = np.ones((rows, n_past + rows), bool)
    for r in range(rows):
        at = r if parent is None or ancestors is None else int(ancestors[r]).bit_count() - 1
        for s in range(n_past if ancestors is not None else n_past + rows):
            mask[r, s] = window == 0 or s > n_past + at - window
        for j in range(rows):
            last = r if last_seen is None else last_seen[r]
            mask[r, n_past + j] &= bool(j <= last) if ancestors is None else bool(int(ancestors[r]) >> j & 1)
    mask[:, : min(first_slot, n_past)] = False
    return mask


def rounded_attention(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, scale: float, mask: NDArray[np.bool_], sinks: ArrayLike | None = None
) -> F64:
    """attention() over the f16 operands of a GPU's matrix units: keys, values, and queries times scale and log2(e)."""
    exponents_of_2 = np.asarray(q, np.float32) * (np.float32(scale) * np.float32(np.log2(np.e)))
    queries, keys, values = (wide(np.asarray(x, np.float16)) for x in (exponents_of_2, k, v))
    return attention(queries * np.log(2), keys, values, 1, mask, sinks=sinks)


def attention(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, scale: float, mask: NDArray[np.bool_], gate: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
) -> F64:  # fmt: skip
    """q [rows, heads, dim], k and v [slots, kv_heads, dim]; query head h reads KV head h // (heads / kv_heads). sinks
    [heads]: logits of a slot without a value."""
    group = wide(q).shape[1] // wide(k).shape[1]
    keys, values = np.repeat(wide(k), group, 1), np.repeat(wide(v), group, 1)
    scores = np.where(mask[:, None], np.einsum("rhd,shd->rhs", wide(q), keys) * float(np.float32(scale)), -np.inf)
    if sinks is not None:
        scores = np.concatenate([scores, np.broadcast_to(wide(sinks)[:, None], (*scores.shape[:2], 1))], axis=2)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    o = np.einsum("rhs,shd->rhd", weights[..., : len(values)], values)
    return o if gate is None else o * sigmoid(gate)
