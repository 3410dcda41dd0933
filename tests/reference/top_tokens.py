"""The likeliest tokens of rows of logits, sorted whole, and their log probabilities in fp64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from reference.rms_norm import F64, wide

F32 = NDArray[np.float32]


def scaled(logits: F32, scale: float, softcap: float) -> F64:
    scores = wide(logits) * float(np.float32(scale))
    return scores if softcap == 0 else softcap * np.tanh(scores / softcap)


def top_tokens(logits: F32, k: int, scale: float = 1.0, softcap: float = 0.0) -> tuple[NDArray[np.int32], F64]:
    """[rows, k]: ids, the larger logit first and then the lower id, and natural log probabilities."""
    ids = np.argsort(-logits, axis=1, kind="stable")[:, :k].astype(np.int32)
    scores = scaled(logits, scale, softcap)
    top = scores.max(axis=1, keepdims=True)
    total = top + np.log(np.exp(scores - top).sum(axis=1, keepdims=True))
    return ids, np.take_along_axis(scores, ids, 1) - total
