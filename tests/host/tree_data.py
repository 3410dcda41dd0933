"""Random trees and chains of an append."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def ancestors_of(parent: NDArray[np.int32]) -> NDArray[np.uint64]:
    masks = np.zeros(len(parent), np.uint64)
    for i, p in enumerate(parent):
        masks[i] = np.uint64(1 << i) | (masks[p] if p >= 0 else np.uint64(0))
    return masks


def random_tree(rows: int, rng: np.random.Generator) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    """Parents (several roots are possible) and ancestor masks."""
    parent = np.array([rng.integers(-1, i) if i else -1 for i in range(rows)], np.int32)
    return parent, ancestors_of(parent)


def path_to(parent: NDArray[np.int32], leaf: int) -> NDArray[np.int32]:
    """The rows from a root to `leaf`."""
    path = []
    while leaf >= 0:
        path.append(leaf)
        leaf = int(parent[leaf])
    return np.array(path[::-1], np.int32)
