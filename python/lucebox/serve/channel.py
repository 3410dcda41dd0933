"""A queue from the driver thread to one task of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from lucebox.generation.request import Item, Sink

__all__ = ["Channel"]


class Channel:
    """Carries items of one or more sequences to a task of the event loop that created the channel.

    Unbounded: every answer is finite, and a slow client must not slow the engine down.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[tuple[int, Item]] = deque()
        self._ready = asyncio.Event()
        self._is_signalled = False

    def sink(self, index: int) -> Sink:
        """The sink of one sequence; get() returns its items with this index."""
        return _Sink(self, index)

    def put(self, index: int, item: Item) -> None:
        self._items.append((index, item))
        if not self._is_signalled:
            self._is_signalled = True
            with suppress(RuntimeError):  # the loop is closed, so no task reads
                self._loop.call_soon_threadsafe(self._ready.set)

    async def get(self) -> list[tuple[int, Item]]:
        """Waits for an item, then returns all of them in order."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            self._is_signalled = False  # cleared before the items are taken, so a concurrent put() signals again
            items = []
            while self._items:
                items.append(self._items.popleft())
            if items:
                return items


class _Sink(Sink):
    def __init__(self, channel: Channel, index: int) -> None:
        self._channel = channel
        self._index = index

    def put(self, item: Item) -> None:
        self._channel.put(self._index, item)
