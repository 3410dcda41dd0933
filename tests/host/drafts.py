"""Trees of drafted tokens, and decoding with and without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from lucebox import _engine
from reference.gguf_files import Shape

VOCAB = Shape().vocab
Tree = tuple[list[int], list[int]]  # tokens and parents below the next token; -1: that token
Draft = Callable[[list[int]], Tree]  # from the tokens that plain decoding writes next, the root first

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "seed": 7},
    "penalised": {"temperature": 1.0, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2},
    "biased": {"temperature": 0.7, "typical_p": 0.9, "logit_bias": {3: 5.0, 8: -100.0}, "seed": 2},
}


def mask_after(ids: list[int]) -> np.ndarray:
    """A mask that depends on the tokens so far, as a grammar's does."""
    allowed = np.random.default_rng(sum(ids)).random(VOCAB) < 0.7
    bits = np.packbits(allowed, bitorder="little")
    return np.pad(bits, (0, -len(bits) % 4)).view(np.uint32)


class Writer:
    """A session that continues its ids by sampled tokens."""

    def __init__(self, engine: _engine.Engine, ids: list[int], drafts: bool, **sampling: Any) -> None:
        self.session, self.ids = _engine.Session(engine), list(ids)
        self.sampler = _engine.Sampler(engine.info["vocab"], **sampling)
        self.sampler.set_prompt(self.array)
        self.session.set_drafting(drafts)

    @property
    def array(self) -> np.ndarray:
        return np.array(self.ids, np.int32)

    def write(self, n: int) -> list[int]:
        for i in range(n):
            self.session.sync(self.array)
            self.check(i)
            self.ids.append(self.session.sample(self.sampler))
        return self.ids[-n:]

    def check(self, i: int) -> None:
        """Called before the i-th token of write() is sampled."""


def decode(
    session: _engine.Session,
    prompt: list[int],
    n: int,
    *,
    draft: Callable[[int], Tree] | None = None,
    masked: bool = False,
    **sampling: Any,
) -> list[int]:
    """Decodes n tokens after the prompt. `draft` makes the tree below token i before token i is sampled."""
    sampler = _engine.Sampler(VOCAB, **sampling)
    sampler.set_prompt(np.array(prompt, np.int32))
    ids = list(prompt)
    session.set_drafting(draft is None)  # only suggested trees
    for i in range(n):
        session.sync(np.array(ids, np.int32))
        if masked:
            sampler.set_mask(mask_after(ids))
        if draft is not None:
            tokens, parents = draft(i)
            session.suggest(np.array(tokens, np.int32), parents)
        ids.append(session.sample(sampler))
    return ids[len(prompt) :]


def write(session: _engine.Session, prompt: list[int], n: int) -> list[int]:
    """Decodes n greedy tokens after the prompt, with the session's drafts."""
    sampler = _engine.Sampler(VOCAB)
    ids = np.empty(len(prompt) + n, np.int32)
    ids[: len(prompt)] = prompt
    for i in range(len(prompt), len(ids)):
        session.sync(ids[:i])
        ids[i] = session.sample(sampler)
    return ids[len(prompt) :].tolist()


def random_tree(rng: np.random.Generator, future: list[int], rows: int) -> Tree:
    """A tree of random shape, whose top part follows plain decoding."""
    tokens: list[int] = []
    parents: list[int] = []
    right = -1  # the deepest node on the right path
    depth, wanted = 0, int(rng.integers(0, len(future) + 1))
    for i in range(rows):
        if depth < wanted and rng.random() < 0.5:
            tokens.append(future[depth])
            parents.append(right)
            right, depth = i, depth + 1
            continue
        parent = int(rng.integers(-1, i)) if i else -1
        token = int(rng.integers(0, VOCAB))
        if parent == right and depth < len(future) and token == future[depth]:
            right, depth = i, depth + 1
        tokens.append(token)
        parents.append(parent)
    return tokens, parents
