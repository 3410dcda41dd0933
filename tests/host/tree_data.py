"""Random trees and chains of an append."""

from __future__ import annotations

import numpy as np
from lucebox.selftest.inputs import ancestors_of
from numpy.typing import NDArray


def random_tree(rows: int, rng: np.random.Generator) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    """Parents (several roots are possible) and ancestor masks."""
    parent = np.array([rng.integers(-1, i) if i else -1 for i in range(rows)], np.int32)
    return parent, ancestors_of(parent)


def block_masks(rows: int, kind: str, rng: np.random.Generator) -> NDArray[np.uint64] | None:
    """Words of a block whose rows may see later ones: "all" of them, or "random" ones and themselves; "chain": none."""
    if kind == "chain":
        return None
    words = rng.integers(0, 2**64, rows, np.uint64) if kind == "random" else np.full(rows, 2**64 - 1, np.uint64)
    return (words | np.uint64(1) << np.arange(rows, dtype=np.uint64)) & np.uint64(2**rows - 1)


def path_to(parent: NDArray[np.int32], leaf: int) -> NDArray[np.int32]:
    """The rows from a root to `leaf`."""
    path = []
    while leaf >= 0:
        path.append(leaf)
        leaf = int(parent[leaf])
    return np.array(path[::-1], np.int32)
