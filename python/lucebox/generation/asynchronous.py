"""asyncio front end: a thread reads a stream, and the event loop receives its chunks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from lucebox.generation.reader import ChunkStream
from lucebox.results import Chunk, Generation

__all__ = ["last_of", "stream_in_thread"]


async def stream_in_thread(begin: Callable[[], ChunkStream]) -> AsyncIterator[Chunk]:
    """Yields the chunks of a stream that a dedicated thread begins and reads. When the consumer leaves, by cancellation
    or otherwise, the thread stops after the current token or prefill chunk. The generator waits for the thread, so the
    session is free on return."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Chunk | BaseException | None] = asyncio.Queue()
    reading = _Reading()

    def put(item: Chunk | BaseException | None) -> None:
        with suppress(RuntimeError):  # the loop was closed without waiting
            loop.call_soon_threadsafe(queue.put_nowait, item)

    def work() -> None:
        try:
            reading.run(begin(), put)
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
        reading.stop()
        while not is_over:
            item = await asyncio.shield(queue.get())
            is_over = item is None or isinstance(item, BaseException)


class _Reading:
    """A stream that one thread reads and another thread may stop, even before it begins."""

    def __init__(self) -> None:
        self._stream: ChunkStream | None = None
        self._is_stopped = threading.Event()

    def run(self, stream: ChunkStream, put: Callable[[Chunk], None]) -> None:
        self._stream = stream
        while not self._is_stopped.is_set() and (chunk := next(stream, None)) is not None:
            put(chunk)
        stream.close()

    def stop(self) -> None:
        self._is_stopped.set()
        if self._stream is not None:
            self._stream.cancel()


async def last_of(chunks: AsyncIterator[Chunk]) -> Generation:
    """The whole result, which the last chunk carries."""
    result = None
    async for chunk in chunks:
        result = chunk.result
    assert result is not None
    return result
