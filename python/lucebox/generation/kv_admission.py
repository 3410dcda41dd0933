"""Pages of the KV cache for sequences that run side by side. Where the cache is full, the sequence that began last is
swapped out to host memory, and continues, with the same bits, when pages are free. The oldest one always continues."""

from __future__ import annotations

from collections.abc import Iterable

from lucebox import _engine
from lucebox.generation.loaded_model import LoadedModel
from lucebox.generation.prefix_cache import PrefixCache
from lucebox.generation.prefix_cache.plan import PAGE
from lucebox.generation.sequence import Sequence

__all__ = ["KvAdmission"]


class KvAdmission:
    """Decides which of the running sequences have pages."""

    def __init__(self, model: LoadedModel, running: list[Sequence], cache: PrefixCache) -> None:
        """running: the caller's list, oldest first. cache: it has pages too, and takes them here."""
        self._model = model
        self._running = running
        self.watch(cache)

    def watch(self, cache: PrefixCache) -> None:
        """Frees pages of this cache from now on."""
        self._cache = cache
        cache.free_pages = self.free_pages

    @property
    def has_paused(self) -> bool:
        """Whether a sequence waits for pages. New ones must then wait too: they would take them."""
        return any(one.is_paused for one in self._running)

    def resume(self) -> None:
        """Lets paused sequences continue, the oldest first, where they leave the others a page each to grow."""
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
        """The sequences among these that have pages for their next turn.

        computing: one that is in the middle of its turn; it keeps its pages."""
        ordered = sorted(due, key=self._running.index)
        return [one for one in ordered if not one.is_paused and self._take(one, computing)]

    def take_alone(self, session: _engine.Session, n_tokens: int) -> None:
        """Takes pages for a session that computes beside the running sequences, which take theirs back later. If there
        are too few even then, the computation raises OutOfMemoryError."""
        while not session.reserve(n_tokens):
            if self.free_pages():
                continue
            holder = next((one for one in reversed(self._running) if one.session.n_pages > 0), None)
            if holder is None:
                return
            holder.session.swap_out()

    def free_pages(self) -> bool:
        """Gives back the pages of the least recently used prefix, else of the least recently used free session, else of
        the newest sequence that waits for its reader. False: only sequences that may compute have pages."""
        if self._cache.drop_pages() or self._model.sessions.reset_oldest():
            return True
        unread = (one for one in reversed(self._running) if one.sink.is_full and one.session.n_pages > 0)
        if (one := next(unread, None)) is None:
            return False
        one.session.swap_out()
        return True

    def _make_free(self, n_pages: int) -> bool:
        """Frees pages until n_pages are free. False: there are fewer."""
        while self._model.engine.n_free_pages < n_pages:
            if not self.free_pages():
                return False
        return True

    def _take(self, one: Sequence, computing: Sequence | None) -> bool:
        """Takes pages for a sequence, from those that began after it where none are free."""
        while not one.session.reserve(one.next_length):
            if self.free_pages():
                continue
            holders = [other for other in self._running if other.session.n_pages > 0 and other is not one]
            if not holders:
                return True  # no other holds pages: the engine reports what is wrong
            last = next((other for other in reversed(holders) if other is not computing), one)
            victim = last if self._running.index(last) > self._running.index(one) else one
            victim.session.swap_out()
            victim.is_paused = True
            if victim is one:
                return False
        return True
