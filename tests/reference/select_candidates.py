"""DFlash 2's selector in fp64: a walk down the rows, each scored beside the token chosen before."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from reference.rms_norm import F64, wide

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


def select_candidates(
    hidden: F32, predecessors: F32, successors: F32, root: int, ids: I32, logprobs: F32
) -> tuple[I32, F64, F64]:
    """[rows, k]: ids and log probabilities in the order of the scores, and the size of a score's terms."""
    out_ids, out_logprobs, sizes = [], [], []
    previous = root
    for row, own, logprob in zip(wide(hidden), ids, wide(logprobs), strict=True):
        terms = wide(predecessors)[previous] * row * wide(successors)[own]
        score = logprob + terms.sum(axis=1)
        order = np.argsort(-score, kind="stable")
        top = score[order[0]]
        out_ids.append(own[order])
        out_logprobs.append(score[order] - top - np.log(np.exp(score - top).sum()))
        sizes.append((np.abs(logprob) + np.abs(terms).sum(axis=1)).max() + np.zeros(len(own)))
        previous = int(own[order[0]])
    return np.array(out_ids, np.int32), np.array(out_logprobs), np.array(sizes)
