"""Admission of concurrent sequences to the KV page pool. When the pool is full, the newest sequence is swapped out to
host memory, and resumes bit-identically when pages are free. The oldest sequence always continues."""

from __future__ import annotations

from collections.abc import Iterable

from lucebox import _engine
from lucebox.generation.loaded_model import LoadedModel
from lucebox.generation.prefix_cache import PrefixCache
from lucebox.generation.prefix_cache.plan import PAGE
from lucebox.generation.sequence import Sequence

__all__ = ["KvAdmission"]


class KvAdmission:
    """Decides which running sequences hold KV pages."""

    def __init__(self, model: LoadedModel, running: list[Sequence], cache: PrefixCache) -> None:
        """running: the caller's list, oldest first. cache: also holds pages, and calls `free_pages` of this object when
        a restore needs some."""
        self._model = model
        self._running = running
        self.watch(cache)

    def watch(self, cache: PrefixCache) -> None:
        """Replaces the cache whose pages may be freed."""
        self._cache = cache
        cache.free_pages = self.free_pages

    @property
    def has_paused(self) -> bool:
        """Whether a sequence waits for pages. New sequences must then wait too, or they would take those pages."""
        return any(one.is_paused for one in self._running)

    def resume(self) -> None:
        """Resumes paused sequences, oldest first, if every other sequence still has a page to grow into."""
        others = sum(one.session.n_pages > 0 and not one.sink.is_full for one in self._running)
        for one in self._running:
            if not one.is_paused:
                continue
            has_room = self._make_free(-(-one.next_length // PAGE) + others)
            if others and not has_room:
                return
            one.is_paused = False
            others += 1

    def with_pages(self, due: Iterable[Sequence], computing: Sequence | None = None) -> list[Sequence]:
        """The due sequences that have pages for their next turn.

        computing: a sequence in the middle of its turn; it keeps its pages."""
        ordered = sorted(due, key=self._running.index)
        return [one for one in ordered if not one.is_paused and self._take(one, computing)]

    def take_alone(self, session: _engine.Session, n_tokens: int) -> None:
        """Reserves pages for a session outside the run loop, by swapping out running sequences if needed; they resume
        later. If pages are still too few, the computation raises OutOfMemoryError."""
        while not session.reserve(n_tokens):
            if self.free_pages():
                continue
            holder = next((one for one in reversed(self._running) if one.session.n_pages > 0), None)
            if holder is None:
                return
            holder.session.swap_out()

    def free_pages(self) -> bool:
        """Frees the pages of the least recently used prefix, else of the least recently used free session, else of the
        newest sequence that waits for its reader. False: only runnable sequences hold pages."""
        if self._cache.drop_pages() or self._model.sessions.reset_oldest():
            return True
        unread = (one for one in reversed(self._running) if one.sink.is_full and one.session.n_pages > 0)
        if (one := next(unread, None)) is None:
            return False
        one.session.swap_out()
        return True

    def _make_free(self, n_pages: int) -> bool:
        """Frees pages until n_pages are free. False: too few could be freed."""
        while self._model.engine.n_free_pages < n_pages:
            if not self.free_pages():
                return False
        return True

    def _take(self, one: Sequence, computing: Sequence | None) -> bool:
        """Reserves pages for a sequence; if none are free, preempts sequences that began after it."""
        while not one.session.reserve(one.next_length):
            if self.free_pages():
                continue
            holders = [other for other in self._running if other.session.n_pages > 0 and other is not one]
            if not holders:
                return True  # nothing left to preempt: the engine raises OutOfMemoryError
            last = next((other for other in reversed(holders) if other is not computing), one)
            victim = last if self._running.index(last) > self._running.index(one) else one
            victim.session.swap_out()
            victim.is_paused = True
            if victim is one:
                return False
        return True
