"""The way of tokens out of the engine's thread: items are put there and taken by one task of an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Protocol

from lucebox.serve.request import Item

__all__ = ["Channel", "Sink"]


class Sink(Protocol):
    """Where a job's items go; called by the engine's thread, which it must not hold up."""

    def put(self, item: Item) -> None: ...


class Channel:
    """Items of one or several jobs, for a task of the event loop it was made in.

    It has no limit: an answer has an end, and a client that reads slowly must not slow the engine.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[tuple[int, Item]] = deque()
        self._ready = asyncio.Event()
        self._is_signalled = False

    def sink(self, index: int) -> Sink:
        """For the items of one job, which come out with its index."""
        return _Sink(self, index)

    def put(self, index: int, item: Item) -> None:
        self._items.append((index, item))
        if not self._is_signalled:
            self._is_signalled = True
            with suppress(RuntimeError):  # the loop has been closed: nobody reads
                self._loop.call_soon_threadsafe(self._ready.set)

    async def get(self) -> list[tuple[int, Item]]:
        """All items there are, at least one, in their order."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            self._is_signalled = False  # before taking: an item put meanwhile wakes once more
            items = []
            while self._items:
                items.append(self._items.popleft())
            if items:
                return items


class _Sink:
    def __init__(self, channel: Channel, index: int) -> None:
        self._channel = channel
        self._index = index

    def put(self, item: Item) -> None:
        self._channel.put(self._index, item)
