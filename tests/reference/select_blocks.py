"""Block-sparse attention in fp64: means of keys, scores of key blocks, and which of them each query block sees."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray
from reference.rms_norm import F64, wide

BLOCK, SINKS, WINDOW = 128, 2, 4


def key_means(k: ArrayLike) -> F64:
    """k [slots, kv_heads, dim] -> [kv_heads, dim, whole blocks]."""
    keys = wide(k)
    n = len(keys) // BLOCK
    means: F64 = keys[: n * BLOCK].reshape(n, BLOCK, *keys.shape[1:]).mean(1).transpose(1, 2, 0)
    return means


def block_scores(q: ArrayLike, means: F64, n_past: int, scale: float) -> F64:
    """[query_blocks, kv_heads, blocks]: sums over queries of the softmax over the blocks that end at or before them."""
    rows, heads, _ = wide(q).shape
    kv_heads, _, n = means.shape
    group = heads // kv_heads
    logits = np.einsum("rhd,hdb->rhb", wide(q), np.repeat(means, group, 0)) * float(np.float32(scale))
    seen = (np.arange(n) + 1) * BLOCK <= n_past + np.arange(rows)[:, None] + 1
    logits = np.where(seen[:, None], logits, -np.inf)
    largest = logits.max(-1, keepdims=True, initial=-1e300)
    weights = np.exp(logits - largest)
    sums = weights.sum(-1, keepdims=True)
    weights = np.divide(weights, sums, out=np.zeros_like(weights), where=sums > 0)
    step = max(1, BLOCK // group)
    grouped = weights.reshape(rows, kv_heads, group, n)
    blocks = [grouped[r : r + step].sum((0, 2)) for r in range(0, rows, step)]
    return np.array(blocks)


def last_blocks(rows: int, group: int, n_past: int) -> NDArray[np.int64]:
    """The key block of each query block's last row."""
    step = max(1, BLOCK // group)
    return (n_past + np.minimum(np.arange(step, rows + step, step), rows) - 1) // BLOCK


def selected(scores: F64, last: NDArray[np.int64], alpha: float) -> NDArray[np.bool_]:
    """[query_blocks, kv_heads, key blocks] from the scores of whole blocks."""
    n_blocks = int(last.max()) + 1
    padded = np.zeros((*scores.shape[:2], n_blocks))
    padded[:, :, : scores.shape[2]] = scores[:, :, :n_blocks]
    block = np.arange(n_blocks)
    forced = (block < SINKS) | (block > last[:, None] - WINDOW)
    chosen = (padded >= alpha * padded.max(-1, keepdims=True)) | forced[:, None]
    return chosen & (block <= last[:, None])[:, None]


def mask_of(chosen: NDArray[np.bool_], rows: int, heads: int, n_past: int) -> NDArray[np.bool_]:
    """[rows, heads, slots]: the slots that each query sees, those of its blocks up to itself."""
    group = heads // chosen.shape[1]
    by_row = np.repeat(chosen, max(1, BLOCK // group), 0)[:rows]
    by_slot = np.repeat(np.repeat(by_row, group, 1), BLOCK, 2)[:, :, : n_past + rows]
    causal = np.arange(n_past + rows) <= n_past + np.arange(rows)[:, None]
    return by_slot & causal[:, None]


def lists_of(chosen: NDArray[np.bool_], size: int) -> NDArray[np.int32]:
    """As the ops have them: [query_blocks, kv_heads, size], the number of blocks and then the blocks."""
    lists = np.zeros((*chosen.shape[:2], size), np.int32)
    for index in np.ndindex(*chosen.shape[:2]):
        blocks = np.flatnonzero(chosen[index])
        lists[index][: len(blocks) + 1] = [len(blocks), *blocks]
    return lists
