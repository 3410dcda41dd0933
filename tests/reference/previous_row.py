"""The row before each row of an append, over the whole history at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


class Sequence:
    """Committed rows, of which each append sees the last one."""

    def __init__(self, dim: int) -> None:
        self.rows = np.zeros((1, dim), np.float32)  # before the first row: zeros

    def previous(self, x: F32, parent: NDArray[np.int32] | None) -> F32:
        """[rows, dim]"""
        parents = np.arange(len(x)) - 1 if parent is None else parent
        return np.array([x[p] if p >= 0 else self.rows[-1] for p in parents], np.float32).reshape(x.shape)

    def commit(self, x: F32) -> None:
        self.rows = np.concatenate([self.rows, x])
