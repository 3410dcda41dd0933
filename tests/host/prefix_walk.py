"""A random walk of sessions that share prefixes in a KV cache with few pages: prompts, cancelled prompts, steps, forks,
swaps and evictions. Every answer has the bits of a cold run in another engine."""

from __future__ import annotations

from collections import Counter

import numpy as np
from conversations import generate
from engines import Ids
from lucebox import _engine
from lucebox.generation.prefix_cache import PrefixCache, append_ends

N_SESSIONS = 3
TURN = 130  # tokens between boundaries


class PrefixWalk:
    def __init__(self, engine: _engine.Engine, roomy: _engine.Engine, vocab: int, rng: np.random.Generator) -> None:
        """roomy: the same model with pages for all rows."""
        self.counts: Counter[str] = Counter()
        self._engine, self._vocab, self._rng = engine, vocab, rng
        self._n_free = engine.n_free_window_pages
        self._cache = PrefixCache(1 << 30, engine=engine)
        self._sessions = [_engine.Session(engine) for _ in range(N_SESSIONS)]
        self._now = self._sessions[0]
        self._alone = _engine.Session(roomy)
        self._prompts = [self._random(200)]
        self._cache.free_pages = self._free_pages

    def step(self, longest: int, n_steps: int) -> None:
        """longest: of a prompt. n_steps: after each prompt."""
        self._now = self._sessions[int(self._rng.integers(N_SESSIONS))]
        kinds = ["prompt"] * 5 + ["cancel", "fork", "swap", "drop", "reset"]
        kind = str(self._rng.choice(kinds))
        self.counts[kind] += 1
        if kind in ("prompt", "cancel"):
            self._prompt(longest, n_steps, is_cancelled=kind == "cancel")
        elif kind == "fork":
            other = self._sessions[int(self._rng.integers(N_SESSIONS))]
            while other.is_swapped_out and not other.reserve(other.n_tokens):
                assert self._free_pages(other)
            self._now.fork(other)
        elif kind == "swap":
            self._now.swap_out()
        elif kind == "drop":
            self._cache.drop_pages()
        else:
            self._now.reset()

    def end(self) -> None:
        """Drops sessions and prefixes, after which every page of both pools must be free."""
        for session in self._sessions:
            session.reset()
        while self._cache.drop_pages():
            pass
        assert self._engine.n_free_pages == self._engine.n_pages
        assert self._engine.n_free_window_pages == self._n_free
        self._cache.close()

    def _random(self, n: int) -> Ids:
        return self._rng.integers(0, self._vocab, n, dtype=np.int32)

    def _prompt(self, longest: int, n_steps: int, *, is_cancelled: bool) -> None:
        known = self._prompts[int(self._rng.integers(len(self._prompts)))]
        tail = self._random(int(self._rng.integers(1, 160)))
        ids = np.concatenate([known[: int(self._rng.integers(longest - 160))], tail])
        self._prompts.append(ids)
        session = self._now
        boundaries = range(TURN, len(ids), TURN)
        steps = self._cache.prefill(session, ids, boundaries)
        for i, done in enumerate(steps):
            self.counts["reused"] += done if i == 0 else 0
            if is_cancelled and i == 1:
                return steps.close()
        for end in append_ends(len(ids), boundaries, session.prefill_chunk):
            self._alone.sync(ids[:end])
        assert np.array_equal(session.logits().view(np.uint32), self._alone.logits().view(np.uint32)), len(ids)
        while not session.reserve(len(ids) + n_steps):
            assert self._free_pages()
        assert generate(session, ids, n_steps, 0) == generate(self._alone, ids, n_steps, 0)
        self._alone.reset()

    def _free_pages(self, kept: _engine.Session | None = None) -> bool:
        """As KvAdmission: prefixes first, then other sessions."""
        if self._cache.drop_pages():
            self.counts["moved"] += 1
            return True
        one = next((one for one in self._sessions if one not in (self._now, kept) and one.n_pages > 0), None)
        if one is None:
            return False
        one.swap_out()
        return True
