"""Prefill that also returns the log probability of every prompt token. Reuses no prefix, because cached rows have no
logits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from lucebox import _engine
from lucebox.generation.log_softmax import log_softmax
from lucebox.generation.request import PromptToken, Sink
from lucebox.text import Ids

__all__ = ["scored_prefill"]

ROWS = 64  # rows per turn; their logits are copied to the host: 64 MB for a vocabulary of 250,000 tokens


def scored_prefill(session: _engine.Session, ids: Ids, n_top: int, sink: Sink) -> Iterator[int]:
    """Computes a prompt and puts its tokens, with their log probabilities, into the sink.

    Yields the number of tokens done, like `PrefixCache.prefill`.
    """
    session.reset()
    yield 0
    sink.put(PromptToken(int(ids[0]), None))
    for start in range(0, len(ids), ROWS):
        logits = session.append(ids[start : start + ROWS])[0]
        session.commit(list(range(len(logits))))
        for row, token in zip(logits, ids[start + 1 : start + 1 + len(logits)].tolist(), strict=False):
            sink.put(_scored(row, token, n_top))
        yield start + len(logits)


def _scored(logits: NDArray[np.float32], token: int, n_top: int) -> PromptToken:
    """logits: [vocab], of the row before `token`."""
    values = log_softmax(logits)
    best = np.argpartition(values, -n_top)[-n_top:] if n_top else np.empty(0, np.int64)
    ordered = best[np.lexsort((best, -values[best]))]
    return PromptToken(token, float(values[token]), tuple((int(i), float(values[i])) for i in ordered))
