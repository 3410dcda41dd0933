"""The sessions of an `LLM`: one per generation at work, made when first needed, and the lock under which they take
turns on the device."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lucebox import _engine
from lucebox.errors import InvalidRequestError, OutOfMemoryError
from lucebox.generation.prefix_cache import PrefixCache
from lucebox.passes import Passes

__all__ = ["SessionPool"]

SWAP_PATIENCE_S = 0.1  # some tokens of the others, so that swaps of generations in different threads stay few

Choose = Callable[[list[_engine.Session]], _engine.Session]
"""One of the free sessions."""


class SessionPool:
    """Up to `limit` sessions of one engine. The first one is made at once: a model loads whole or not at all."""

    def __init__(self, engine: _engine.Engine, limit: int, cache_bytes: int, *, on_device: bool = False) -> None:
        self.turn = threading.RLock()
        """Held by the thread whose session computes: sessions share the device and its scratch memory."""
        self.free = [_engine.Session(engine)]
        """Sessions that no generation uses, the one used last at the end."""
        self.engine = engine
        self.on_device = on_device
        """Whether a device computes what threads have sent: passes may be sent ahead of texts, and prefixes keep their
        pages of the KV cache."""
        self.cache = self._new_cache(cache_bytes)
        """Computed prefixes of prompts; used in turn."""
        self.passes = Passes(self.turn)
        """Joins the rows of generations in different threads."""
        self._limit = limit
        self._in_use: list[tuple[_engine.Session, int]] = []  # with the thread that took it
        self._changed = threading.Condition()
        _pools.add(self)

    @property
    def latest(self) -> _engine.Session:
        """The free session that was used last, else one in use; to look at, not to compute with."""
        with self._changed:
            return self.free[-1] if self.free else self._in_use[-1][0]

    @contextmanager
    def session(self, choose: Choose) -> Iterator[_engine.Session]:
        """A session for one generation, chosen from the free ones; waits for one where all are in use.

        Raises:
            InvalidRequestError: this thread's own unfinished generations use all of them, so it would wait forever.
        """
        with self._changed:
            while (session := self.take(choose)) is None:
                self.wait()
        try:
            yield session
        finally:
            self.give_back(session)

    def wait(self) -> None:
        """Waits until another thread gives a session back.

        Raises:
            InvalidRequestError: as `session`.
        """
        me = threading.get_ident()
        with self._changed:
            if self.free:
                return
            if all(owner == me for _, owner in self._in_use):
                raise self._all_unfinished()
            self._changed.wait()

    def take(self, choose: Choose) -> _engine.Session | None:
        """A session chosen from the free ones, to be given back; None where all are in use."""
        with self._changed:
            if not self.free and not self._make():
                return None
            session = choose(self.free)
            self.free.remove(session)
            self._in_use.append((session, threading.get_ident()))
            return session

    def give_back(self, session: _engine.Session) -> None:
        self.passes.leave(session)
        if session.is_swapped_out:
            with self.turn:
                session.reset()
        with self._changed:
            self._in_use = [one for one in self._in_use if one[0] is not session]
            self.free.append(session)
            self._changed.notify_all()  # threads wait for a session, or for pages

    def reset(self) -> None:
        """Empties the free sessions and the prefix cache."""
        with self._changed, self.turn:
            budget_bytes = self.cache.stats().memory_budget_bytes
            self.cache.close()
            self.cache = self._new_cache(budget_bytes)
            for session in self.free:
                session.reset()

    @contextmanager
    def turn_of(self, session: _engine.Session, n_tokens: int) -> Iterator[None]:
        """The turn, with pages of the KV cache for a timeline of n_tokens. Where too few are free, swaps out the
        generation that began last among the others; one that was swapped out itself first waits a little for pages.
        Where even that does not help, the computation raises OutOfMemoryError."""
        give_way_until = time.perf_counter() + (SWAP_PATIENCE_S if session.is_swapped_out else 0)
        while True:
            with self.turn:
                if self._take_pages(session, n_tokens, time.perf_counter() >= give_way_until):
                    yield
                    return
            with self._changed:
                self._changed.wait(SWAP_PATIENCE_S / 10)

    def _take_pages(self, session: _engine.Session, n_tokens: int, may_swap: bool) -> bool:
        """False: later, as a generation of another thread has the pages. In turn."""
        while not session.reserve(n_tokens):
            if self.free_pages():
                continue
            others = [one for one in list(self._in_use) if one[0] is not session and one[0].n_pages]
            if not others:
                return True
            if not may_swap and any(owner != threading.get_ident() for _, owner in others):
                return False
            others[-1][0].swap_out()
        return True

    def free_pages(self) -> bool:
        """Drops the pages of the least recently used prefix, else resets the least recently used free session. False:
        nothing but running generations has pages.

        The caller holds the turn, so a session that another thread takes meanwhile has not begun. It may be emptied."""
        if self.cache.drop_pages():
            return True
        holder = next((session for session in list(self.free) if session.n_pages), None)
        if holder is not None:
            holder.reset()
        return holder is not None

    def _new_cache(self, n_bytes: int) -> PrefixCache:
        cache = PrefixCache(n_bytes, engine=self.engine if self.on_device else None)
        me = weakref.ref(self)  # no cycle: a closed LLM frees its memory at once
        cache.free_pages = lambda: (pool := me()) is not None and pool.free_pages()
        return cache

    def _make(self) -> bool:
        """Makes a session, unless the limit is reached."""
        if len(self._in_use) >= self._limit:
            return False
        try:
            with self.turn:
                self.free.append(_engine.Session(self.engine))
        except OutOfMemoryError:
            self._limit = len(self._in_use)  # other programs took the memory since the model was loaded
            return False
        return True

    def _all_unfinished(self) -> InvalidRequestError:
        n = len(self._in_use)
        return InvalidRequestError(
            f"this LLM has {n} sessions, and {n} streams that this thread began are unfinished: finish or close one, "
            f"or load with sessions={n + 1}, and kv_tokens for what they hold together"
        )


_pools: weakref.WeakSet[SessionPool] = weakref.WeakSet()


@atexit.register
def _stop_generating() -> None:
    """Waits until no thread is inside the engine, and lets none enter again. A daemon thread that returns from the
    engine while the interpreter is torn down aborts the process. The sessions of unfinished generations stay until it
    has ended, which nanobind would report as a leak."""
    for pool in list(_pools):
        pool.turn.acquire()
        if pool._in_use:
            _engine.allow_leaks()
