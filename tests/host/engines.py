"""Helpers to open engines and run tokens through sessions. Defaults are the exact mode: fp32 everywhere, one thread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lucebox import _engine
from lucebox.models.drafters import Drafters
from lucebox.options import engine_fields
from numpy.typing import ArrayLike, NDArray

F32 = NDArray[np.float32]
Ids = NDArray[np.int32]


# Speculation would measure these at load, which takes long on the simulator.
STEP_COSTS = {
    "append": [(2, 1.1), (4, 1.2), (8, 1.3), (16, 1.4), (32, 2.0), (64, 4.0)],
    "plain_ms": 1.0,
    "draft_ms": 0.2,
    "draft_depth": 0,
    "first_ms": 0.0,
    "context_ms": 0.0,
    "is_fixed": True,
}


DEFAULTS = {"context": 256, "threads": 1, "activations": "f32", "kv": "f32", "prefill_chunk": 64}


def open_engine(path: Path, draft: str = "none", **options: Any) -> _engine.Engine:
    drafters = engine_fields(Drafters.parse(draft))
    engine = _engine.Engine.open(str(path), **(DEFAULTS | {"sessions": 16} | options), **drafters)
    engine.step_costs = STEP_COSTS
    return engine


def open_scorer(path: Path, **options: Any) -> _engine.PromptScorer:
    return _engine.PromptScorer.open(str(path), **(DEFAULTS | {"score_rows": 8} | options))


def random_ids(n: int, vocab: int, seed: int = 0) -> Ids:
    return np.random.default_rng(seed).integers(0, vocab, n, dtype=np.int32)


def feed(session: _engine.Session, ids: ArrayLike, chunk: int = 64) -> F32:
    """Appends and commits ids in chunks; returns the logits after each id."""
    tokens = np.asarray(ids, np.int32)
    logits = []
    for part in (tokens[at : at + chunk] for at in range(0, len(tokens), chunk)):
        logits.append(session.append(part)[0])
        session.commit(list(range(len(part))))
    return np.concatenate(logits)


def logits_of(engine: _engine.Engine, ids: ArrayLike, chunk: int = 64) -> F32:
    """Logits of every token, from an empty session."""
    return feed(_engine.Session(engine), ids, chunk)


def logits_of_steps(engine: _engine.Engine, ids: ArrayLike, prompt: int) -> F32:
    """Logits of every token, from an empty session: a prompt of this many tokens, then a step per token."""
    session, tokens = _engine.Session(engine), np.asarray(ids, np.int32)
    return np.concatenate([feed(session, tokens[:prompt], prompt), feed(session, tokens[prompt:], 1)])


class Decoder:
    """A session that decodes tokens that it samples or that the caller gives."""

    def __init__(self, engine: _engine.Engine, prompt: list[int]) -> None:
        self.session, self.vocab = _engine.Session(engine), engine.info["vocab"]
        self.start(prompt)

    def start(self, prompt: list[int]) -> None:
        self.ids, self.sampler = list(prompt), _engine.Sampler(self.vocab)
        self.sync()

    def sync(self) -> int:
        return self.session.sync(np.array(self.ids, np.int32))

    def choose(self) -> int:
        return self.session.sample(self.sampler)

    def decode(self, n: int) -> list[int]:
        for _ in range(n):
            self.ids.append(self.choose())
            self.sync()
        return self.ids[-n:]


def largest_difference(a: ArrayLike, b: ArrayLike) -> float:
    """Largest difference; infinite where either is not finite."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    assert x.shape == y.shape, (x.shape, y.shape)
    return float(np.abs(x - y).max()) if np.isfinite(x).all() and np.isfinite(y).all() else float("inf")


def mean_kl(p_logits: ArrayLike, q_logits: ArrayLike) -> float:
    """Mean over rows of KL(p || q) in nat."""
    p, q = (log_softmax(np.asarray(x, np.float64)) for x in (p_logits, q_logits))
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def path_to(row: int, parents: Sequence[int]) -> list[int]:
    """Rows from the root to row."""
    path: list[int] = []
    while row >= 0:
        path.insert(0, row)
        row = parents[row]
    return path
