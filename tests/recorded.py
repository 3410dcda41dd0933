"""Recorded outputs of other implementations, and the checks of the engine against them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lucebox import _engine
from numpy.typing import NDArray
from tolerances import tolerance

FOLDER = Path(__file__).parent / "data" / "golden"


def load(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def session(path: Path, *, context: int = 1024, **options: Any) -> _engine.Session:
    return _engine.Session(_engine.Engine.open(str(path), context=context, **options))


def ids(values: Sequence[int]) -> NDArray[np.int32]:
    return np.asarray(values, np.int32)


def log_softmax(logits: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def step_logprobs(session: _engine.Session, prompt: Sequence[int], output: Sequence[int]) -> NDArray[np.float64]:
    """Log probabilities [step, vocab] before each output token. Prefills the whole prompt, then decodes by token."""
    rows = []
    for n in range(len(output)):
        session.sync(ids([*prompt, *output[:n]]))
        rows.append(session.logits())
    return log_softmax(np.stack(rows))


def check_steps(
    logprobs: NDArray[np.float64], top5: Sequence[Sequence[tuple[int, float]]], output: Sequence[int]
) -> None:
    """Checks the top-5 log probabilities of every step, and the greedy token wherever the recorded margin is clear."""
    for step, top in enumerate(top5):
        for token, want in top:
            got = logprobs[step, token]
            assert abs(got - want) < tolerance("golden", "top5_logprob"), (
                f"step {step}, token {token}: {got:.5f}, recorded {want}"
            )
        if top[0][1] - top[1][1] > tolerance("golden", "margin"):
            assert int(logprobs[step].argmax()) == output[step], f"step {step}: greedy choice differs"
