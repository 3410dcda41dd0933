"""Prepares requests in a bounded pool of worker threads; abandons a request when its client disconnects."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import Request

from lucebox.chat.grammar_work import grammar_work
from lucebox.chat.presence import LEFT, set_left
from lucebox.serve.errors import ApiError, overloaded

__all__ = ["Preparation"]

T = TypeVar("T")
THREADS = 16
"""Requests prepared at a time. More than cores: a thread may wait for the process that compiles grammars."""


class Preparation:
    """The worker threads of one server."""

    def __init__(self, max_waiting: int) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "lucebox-prepare")
        self._seats = asyncio.Semaphore(THREADS)
        self._max_waiting = max_waiting
        self._n_waiting = 0

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(self, request: Request, make: Callable[[], T]) -> T:
        """Runs `make` in a worker thread once a seat is free; returns its result.

        Raises:
            ApiError: too many requests wait for a seat, the client has disconnected, or `make` raises it.
        """
        if self._n_waiting >= self._max_waiting + THREADS:
            raise overloaded(f"the queue is full: {self._n_waiting} requests are being prepared", 1)
        left = threading.Event()
        watch = asyncio.create_task(_watch(request, left))
        self._n_waiting += 1
        try:
            async with self._seats:
                if left.is_set():
                    raise ApiError("cancelled", LEFT)
                context = contextvars.copy_context()  # carries the request's SENDER
                return await asyncio.get_running_loop().run_in_executor(self._threads, context.run, _run, left, make)
        finally:
            self._n_waiting -= 1
            watch.cancel()


def _run(left: threading.Event, make: Callable[[], T]) -> T:
    set_left(left)
    with grammar_work():
        return make()


async def _watch(request: Request, left: threading.Event) -> None:
    """Sets `left` when the client disconnects. The guard has read the body, so no other message can arrive."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    left.set()
