"""Pages of the KV cache for generations that run side by side. Where the cache is full, the generation that began last
is swapped out to host memory, and goes on, with the same bits, when pages are free. The oldest one always goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from lucebox import _engine
from lucebox.generation.prefix_cache.plan import PAGE

__all__ = ["PageRoom"]


class Running(Protocol):
    """A generation at work."""

    is_paused: bool
    """Whether it waits for pages; set by PageRoom."""

    @property
    def session(self) -> _engine.Session: ...
    @property
    def next_length(self) -> int:
        """Tokens of its timeline after its next turn."""
        ...


R = TypeVar("R", bound=Running)


class PageRoom(Generic[R]):
    """Decides which of the running generations have pages."""

    def __init__(self, engine: _engine.Engine, running: Sequence[R], free_pages: Callable[[], bool]) -> None:
        """running: the caller's list, oldest first.
        free_pages: gives back some pages that no running generation holds; False: there are none."""
        self._engine = engine
        self._running = running
        self._free_pages = free_pages

    @property
    def has_paused(self) -> bool:
        """Whether a generation waits for pages. New ones must then wait too: they would take them."""
        return any(one.is_paused for one in self._running)

    def resume(self) -> None:
        """Lets paused generations go on, the oldest first, where they leave the others a page each to grow."""
        if not self.has_paused:
            return
        others = sum(one.session.n_pages > 0 for one in self._running)
        for one in self._running:
            if not one.is_paused:
                continue
            has_room = self.make_free(-(-one.next_length // PAGE) + others)
            if others and not has_room:
                return
            one.is_paused = False
            others += 1

    def make_free(self, n_pages: int) -> bool:
        """Frees pages that no running generation holds, until n_pages are free. False: there are fewer."""
        while self._engine.n_free_pages < n_pages:
            if not self._free_pages():
                return False
        return True

    def with_pages(self, due: Iterable[R], computing: R | None = None) -> list[R]:
        """The generations among these that have pages for their next turn.

        computing: one that is in the middle of its turn; it keeps its pages."""
        ordered = sorted(due, key=self._running.index)
        return [one for one in ordered if not one.is_paused and self._take(one, computing)]

    def _take(self, one: R, computing: R | None) -> bool:
        """Takes pages for a generation, from those that began after it where none are free."""
        while not one.session.reserve(one.next_length):
            if self._free_pages():
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
