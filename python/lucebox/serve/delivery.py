"""Delivers answers over HTTP: as server-sent events or as one JSON document.

When the client disconnects, its requests are cancelled, whether waiting or running.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lucebox.generation.answer import Answer
from lucebox.generation.errors import QueueFullError, SchedulerClosedError
from lucebox.generation.request import Failed, Finished, GenerationRequest, Item, Progress
from lucebox.generation.scheduler import Scheduler
from lucebox.serve.channel import Channel
from lucebox.serve.engine_errors import api_error_of, queue_full
from lucebox.serve.errors import ApiError
from lucebox.text.large_json import dump_large

__all__ = [
    "EVENTS",
    "KEEP_ALIVE",
    "LINES",
    "STREAM_HEADERS",
    "ErrorBody",
    "Exchange",
    "FailedStream",
    "JsonAnswer",
    "StreamedAnswer",
    "Writer",
    "compact_json",
    "json_line",
    "sse",
    "write_stream",
]

EVENTS = "text/event-stream; charset=utf-8"
LINES = "application/x-ndjson"
KEEP_ALIVE = b": keep-alive\n\n"
STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # proxies must not buffer events

ErrorBody = Callable[[ApiError], tuple[int, dict[str, Any]]]
"""A protocol's status and body for an error."""


class Writer(Protocol):
    """Formats one protocol's stream: server-sent events, or lines of JSON."""

    def open(self) -> bytes:
        """Sent immediately, before anything is computed."""
        ...

    def write(self, index: int, item: Item) -> bytes: ...

    def beat(self) -> bytes:
        """Heartbeat for silent periods: an event, for clients that time out despite comments."""
        ...

    def close(self) -> bytes:
        """Sent after the last answer."""
        ...

    def fail(self, error: ApiError) -> bytes:
        """Sent in place of close() when a request fails."""
        ...


# Unicode line separators, at which some clients split a stream. JSON escapes the ASCII ones.
_LINE_ENDS = {ord(char): f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"}


def compact_json(data: object) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8", "replace")


def sse(data: object, event: str | None = None) -> bytes:
    head = b"data: " if event is None else b"event: " + event.encode() + b"\ndata: "
    return head + json_line(data) + b"\n"


def json_line(data: object) -> bytes:
    """JSON on one line, with a trailing newline."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).translate(_LINE_ENDS)
    return text.encode("utf-8", "replace") + b"\n"


class Exchange:
    """All answers to one HTTP request: n answers, to one or several prompts."""

    def __init__(
        self,
        scheduler: Scheduler,
        requests: Sequence[GenerationRequest],
        mean_request_s: float,
        *,
        with_progress: bool = False,
    ) -> None:
        """mean_request_s: mean duration of recent requests, for Retry-After. with_progress: a Progress precedes the
        items of a sequence.

        Raises:
            ApiError: the queue is full, or the server is shutting down.
        """
        self._scheduler = scheduler
        self._channel = Channel()
        self._with_progress = with_progress
        self._n_open = len(requests)
        self.owner = ""
        """Digest of the request's API key; set if the response is stored."""
        try:
            self._sequences = scheduler.submit(requests, [self._channel.sink(i) for i in range(len(requests))])
        except QueueFullError as error:
            raise queue_full(error, scheduler.n_slots, mean_request_s) from error
        except SchedulerClosedError as error:
            raise api_error_of(error) from error

    @property
    def is_over(self) -> bool:
        return self._n_open == 0

    def cancel(self) -> None:
        if not self.is_over:
            for sequence in self._sequences:
                self._scheduler.cancel(sequence)

    async def get(self) -> list[tuple[int, Item]]:
        """Waits for items and returns them, each with its answer's index.

        Raises:
            ApiError: a request failed.
        """
        items = await self._channel.get()
        for _, item in items:
            if isinstance(item, Failed):
                raise api_error_of(item.error)
            self._n_open -= isinstance(item, Finished)
        return [*self._progress({index for index, _ in items}), *items] if self._with_progress else items

    def _progress(self, indices: Iterable[int]) -> Iterator[tuple[int, Item]]:
        for index in indices:
            sequence = self._sequences[index]
            yield index, Progress(sequence.n_prompt, sequence.n_generated)


async def write_stream(exchange: Exchange, writer: Writer, send: Callable[[bytes], Awaitable[None]]) -> None:
    """Sends a whole stream, without heartbeats."""
    try:
        await send(writer.open())
        while not exchange.is_over:
            items = await exchange.get()
            if data := b"".join([writer.write(index, item) for index, item in items]):
                await send(data)
        await send(writer.close())
    except ApiError as error:
        await send(writer.fail(error))


class _Delivery(Response):
    """Runs `_deliver`; cancels the requests when the client disconnects."""

    def __init__(self, exchange: Exchange, headers: Mapping[str, str]) -> None:
        super().__init__()
        self._exchange = exchange
        self._fields = headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.create_task(self._watch(receive))
        try:
            await self._deliver(send)
        finally:
            self._exchange.cancel()
            watch.cancel()

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._exchange.cancel()  # their final items then end `_deliver`

    async def _deliver(self, send: Send) -> None:
        raise NotImplementedError

    async def _start(self, send: Send, status: int, headers: Mapping[str, str]) -> None:
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in {**self._fields, **headers}.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})


class StreamedAnswer(_Delivery):
    """A streamed answer, with heartbeats in silent periods."""

    def __init__(
        self, exchange: Exchange, writer: Writer, heartbeat_s: float, media_type: str, headers: Mapping[str, str]
    ) -> None:
        super().__init__(exchange, {"content-type": media_type, **STREAM_HEADERS, **headers})
        self._writer = writer
        self._heartbeat_s = heartbeat_s

    async def _deliver(self, send: Send) -> None:
        await self._start(send, 200, {})

        async def body(data: bytes) -> None:
            self._is_silent = False
            await send({"type": "http.response.body", "body": data, "more_body": True})

        beat = asyncio.create_task(self._beat(body))
        try:
            await write_stream(self._exchange, self._writer, body)
        finally:
            beat.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _beat(self, body: Callable[[bytes], Any]) -> None:
        while True:
            self._is_silent = True
            await asyncio.sleep(self._heartbeat_s)
            if self._is_silent:
                await body(self._writer.beat())


class FailedStream(Response):
    """A stream that fails immediately, for clients that read errors from the stream, not from the HTTP status."""

    media_type = "text/event-stream"

    def __init__(self, writer: Writer, error: ApiError) -> None:
        super().__init__(writer.open() + writer.fail(error), headers=STREAM_HEADERS)


class JsonAnswer(_Delivery):
    """An answer as one JSON document."""

    def __init__(
        self,
        exchange: Exchange,
        n_answers: int,
        document: Callable[[list[Answer]], dict[str, Any]],
        error_body: ErrorBody,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(exchange, {"content-type": "application/json", **headers})
        self._answers = [Answer() for _ in range(n_answers)]
        self._document = document
        self._error_body = error_body

    async def _deliver(self, send: Send) -> None:
        headers = {}
        try:
            while not self._exchange.is_over:
                for index, item in await self._exchange.get():
                    self._answers[index].take(item)
            # Embeddings and log probabilities may have millions of numbers.
            status, body = 200, await asyncio.to_thread(lambda: dump_large(self._document(self._answers)))
        except ApiError as error:
            status, data = self._error_body(error)
            body = compact_json(data)
            if error.retry_after is not None:
                headers["retry-after"] = str(error.retry_after)
        with suppress(OSError):  # the client has disconnected
            await self._start(send, status, {**headers, "content-length": str(len(body))})
            await send({"type": "http.response.body", "body": body})
