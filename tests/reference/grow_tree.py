"""The tree of a draft, best first (Ringel and Romano, DDTree, 2026), with a heap. Scores add up in fp32."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

FIELDS = ("tokens", "parents", "depths", "scores", "ancestors")


def grow_tree(ids: NDArray[np.int32], logprobs: NDArray[np.float32], root: int, max_rows: int) -> dict[str, Any]:
    """The fields of a Draft from the candidates [depth, k] of each depth."""
    depth, k = ids.shape
    tokens, parents, depths, ancestors = [root], [-1], [0], [1]
    scores = [np.float32(0)]
    heap: list[tuple[bool, float, int, int]] = []

    def push(parent: int, rank: int) -> None:
        score = scores[parent] + logprobs[depths[parent], rank]
        unknown = bool(np.isnan(score))
        heapq.heappush(heap, (unknown, 0.0 if unknown else -float(score), parent, rank))

    push(0, 0)
    while heap and len(tokens) < max_rows:
        _, _, parent, rank = heapq.heappop(heap)
        row = len(tokens)
        tokens.append(int(ids[depths[parent], rank]))
        scores.append(scores[parent] + logprobs[depths[parent], rank])
        parents.append(parent)
        depths.append(depths[parent] + 1)
        ancestors.append(ancestors[parent] | 1 << row)
        if rank + 1 < k:
            push(parent, rank + 1)
        if depths[row] < depth:
            push(row, 0)
    return {
        "tokens": np.array(tokens, np.int32),
        "parents": np.array(parents, np.int32),
        "depths": np.array(depths, np.int32),
        "scores": np.array(scores, np.float32),
        "ancestors": np.array(ancestors, np.uint64),
    }
