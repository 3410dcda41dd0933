"""Conversations of random tokens, run with a prefix cache and cold, for tests of prefix reuse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from engines import F32, Ids
from lucebox import _engine
from lucebox.generation.prefix_cache import PrefixCache, append_ends


@dataclass
class Conversation:
    """Prompts that grow turn by turn, with the ends of all turns before the answer as boundaries."""

    vocab: int
    rng: np.random.Generator
    longest_turn: int
    context: int
    ids: list[int] = field(default_factory=list)
    boundaries: list[int] = field(default_factory=list)

    def ask(self, n_answer: int) -> tuple[Ids, list[int]]:
        """The next prompt and its boundaries; a conversation that would exceed the context starts again."""
        n = int(self.rng.integers(1, self.longest_turn + 1))
        if len(self.ids) + n + n_answer > self.context:
            self.ids, self.boundaries = [], []
        self.ids += self.rng.integers(0, self.vocab, n).tolist()
        self.boundaries.append(len(self.ids))
        return np.array(self.ids, np.int32), list(self.boundaries)

    def answered(self, answer: list[int]) -> None:
        self.ids += answer
        self.boundaries.append(len(self.ids))


@dataclass
class Answer:
    reused: int
    logits: F32
    """After the prompt."""
    ids: list[int]


def generate(session: _engine.Session, prompt: Ids, n: int, seed: int) -> list[int]:
    """n sampled tokens after a prompt that the session has computed."""
    sampler = _engine.Sampler(session.logits().size, temperature=0.8, top_p=0.95, seed=seed)
    sampler.set_prompt(prompt)
    ids = prompt.tolist()
    for _ in range(n):
        session.sync(np.array(ids, np.int32))
        ids.append(session.sample(sampler))
    return ids[len(prompt) :]


def warm(session: _engine.Session, cache: PrefixCache, prompt: Ids, boundaries: list[int], n: int, seed: int) -> Answer:
    reused, *_ = list(cache.prefill(session, prompt, boundaries))
    return Answer(reused, session.logits(), generate(session, prompt, n, seed))


def cold(session: _engine.Session, prompt: Ids, boundaries: list[int], n: int, seed: int) -> Answer:
    """Runs the request without a cache."""
    session.reset()
    for end in append_ends(len(prompt), boundaries, session.prefill_chunk):
        session.sync(prompt[:end])
    return Answer(0, session.logits(), generate(session, prompt, n, seed))


def check(got: Answer, want: Answer, what: object) -> None:
    assert np.array_equal(got.logits.view(np.uint32), want.logits.view(np.uint32)), what
    assert got.ids == want.ids, what


def replay(
    engine: _engine.Engine,
    cache: PrefixCache,
    talk: Conversation,
    turns: int,
    n_answer: int = 4,
    cold_every: int = 1,
    sessions: tuple[_engine.Session, _engine.Session] | None = None,
) -> Iterator[int]:
    """Runs a conversation in one session and compares it with cold runs in another; yields how many tokens of each
    prompt were reused."""
    session, other = sessions or (_engine.Session(engine), _engine.Session(engine))
    for turn in range(turns):
        prompt, boundaries = talk.ask(n_answer)
        got = warm(session, cache, prompt, boundaries, n_answer, turn)
        if turn % cold_every == 0:
            check(got, cold(other, prompt, boundaries, n_answer, turn), (turn, len(prompt), got.reused))
        talk.answered(got.ids)
        yield got.reused
