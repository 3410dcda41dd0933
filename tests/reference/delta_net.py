"""Gated DeltaNet in fp64, one token after another: the recurrence itself, with no chunk and no tree."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from reference.rms_norm import F64, sigmoid, silu, wide


def causal_conv(x: ArrayLike, w: ArrayLike, history: ArrayLike) -> F64:
    """silu of the depthwise convolution of [history, x]; tap n_taps - 1 is the row itself."""
    rows, taps = wide(x).shape[0], wide(w).shape[1]
    sequence = np.concatenate([wide(history), wide(x)])
    return silu(sum((sequence[j : j + rows] * wide(w)[:, j] for j in range(taps)), np.zeros_like(wide(x))))


def l2_norm(x: ArrayLike, eps: float) -> F64:
    """eps is added to the sum of squares, inside the root."""
    return wide(x) / np.sqrt((wide(x) ** 2).sum(-1, keepdims=True) + float(np.float32(eps)))


def prepare(
    q: ArrayLike, k: ArrayLike, a: ArrayLike, b: ArrayLike, a_neg: ArrayLike, dt_bias: ArrayLike, eps: float
) -> tuple[F64, F64, F64, F64]:
    """Normalised q and k, the log decay g and beta."""
    g = wide(a_neg) * np.logaddexp(0, wide(a) + wide(dt_bias))
    return l2_norm(q, eps) / np.sqrt(wide(q).shape[-1]), l2_norm(k, eps), g, sigmoid(b)


def key_heads(n_k_heads: int, n_v_heads: int, order: str) -> NDArray[np.int64]:
    """The key head that each value head reads."""
    heads = np.arange(n_v_heads)
    return heads // (n_v_heads // n_k_heads) if order == "grouped" else heads % n_k_heads


def recurrence(
    q: ArrayLike, k: ArrayLike, v: ArrayLike, g: ArrayLike, beta: ArrayLike, state: ArrayLike, order: str = "grouped"
) -> tuple[F64, F64]:
    """(o [rows, VH, dv], the state after the last row) from state [VH, dk, dv]."""
    heads = key_heads(wide(k).shape[1], wide(v).shape[1], order)
    queries, keys, values, s = wide(q)[:, heads], wide(k)[:, heads], wide(v), wide(state).copy()
    o = np.empty_like(values)
    for t in range(len(values)):
        s *= np.exp(wide(g)[t])[:, None, None]
        error = values[t] - np.einsum("hkv,hk->hv", s, keys[t])
        s += np.einsum("hk,hv->hkv", keys[t], error * wide(beta)[t][:, None])
        o[t] = np.einsum("hkv,hk->hv", s, queries[t])
    return o, s
