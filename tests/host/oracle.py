"""A session with given drafts, for tests of draft counts: real trees with known acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from lucebox import LLM, Sampling, _engine


class OracleSession(_engine.Session):
    """Drafts after each token of a known text: the next n_right tokens of the text, then a wrong one."""

    def __init__(self, engine: _engine.Engine, texts: Sequence[Sequence[int]], n_right: int) -> None:
        super().__init__(engine)
        self._texts = [list(text) for text in texts]
        self._n_right = n_right
        self.expected: list[list[int]] = []  # of each request

    def sync(self, ids: np.ndarray, *args: Any, **options: Any) -> int:
        chain = self._next(ids.tolist())
        self.suggest(np.array(chain, np.int32), list(range(-1, len(chain) - 1)))
        return super().sync(ids, *args, **options)

    def expect(self, ids: np.ndarray) -> None:
        self.expected.append(ids.tolist())
        super().expect(ids)

    def _next(self, ids: list[int]) -> list[int]:
        for text in self._texts:
            after = text[len(ids) :]
            if text[: len(ids)] == ids and len(after) > self._n_right:
                right, last = after[: self._n_right], after[self._n_right]
                return [*right, 0 if last else 1]
        return []


def with_oracle(llm: LLM, texts: Sequence[Sequence[int]], n_right: int) -> LLM:
    """Replaces the LLM's session by an oracle. The texts include prompts and answers."""
    llm.pool.free[0] = OracleSession(llm.engine, texts, n_right)
    return llm


def plain_text(model: str, prompt: Sequence[int], n: int, **options: Any) -> list[int]:
    """A prompt and the n greedy tokens after it, the end token included."""
    with LLM(model, draft="none", **options) as llm:
        return [*prompt, *llm.generate(prompt, Sampling(max_tokens=n, ignore_eos=True)).ids]
