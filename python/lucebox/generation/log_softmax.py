"""Log probabilities from logits."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["log_softmax"]


def log_softmax(logits: ArrayLike) -> NDArray[np.float64]:
    """logits: [..., vocab]. Returns the natural log probabilities, [..., vocab]."""
    values = np.asarray(logits, np.float64)
    shifted = values - values.max(axis=-1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
