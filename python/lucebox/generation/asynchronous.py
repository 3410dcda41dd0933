"""Generations for asyncio: a thread runs the iterator, the event loop receives its chunks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress

from lucebox.answering import cancellable
from lucebox.results import Chunk, Generation

__all__ = ["last_of", "stream_in_thread"]


async def stream_in_thread(begin: Callable[[], Iterator[Chunk]]) -> AsyncIterator[Chunk]:
    """The chunks of an iterator that a thread of its own runs. When the consumer leaves, by cancellation or otherwise,
    the thread stops at its next token or prefill chunk, and this waits until it has: the session is free again."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Chunk | BaseException | None] = asyncio.Queue()
    stop = threading.Event()

    def put(item: Chunk | BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop was closed without waiting
            loop.call_soon_threadsafe(queue.put_nowait, item)

    def work() -> None:
        try:
            with cancellable(stop):
                for chunk in begin():
                    put(chunk)
        except BaseException as error:
            put(error)
        else:
            put(None)

    threading.Thread(target=work, name="lucebox-async", daemon=True).start()
    is_over = False
    try:
        while (item := await queue.get()) is not None:
            if isinstance(item, BaseException):
                is_over = True
                raise item
            yield item
        is_over = True
    finally:
        stop.set()
        while not is_over:
            item = await asyncio.shield(queue.get())
            is_over = item is None or isinstance(item, BaseException)


async def last_of(chunks: AsyncIterator[Chunk]) -> Generation:
    """The whole result, which the last chunk carries."""
    result = None
    async for chunk in chunks:
        result = chunk.result
    assert result is not None
    return result
