"""Streams that go on without their client. The server keeps what it has sent of them for a while, and a client that
lost its connection reads such a stream again, from its start; each API key sees only its own.

A client asks for it with the header HEADER and a name that nobody guesses.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping

from starlette.responses import Response, StreamingResponse

from lucebox.serve.delivery import EVENTS, STREAM_HEADERS, Exchange, Writer, write_stream
from lucebox.serve.errors import ApiError

__all__ = ["HEADER", "KeptStreams"]

HEADER = "lucebox-stream"
NAME = re.compile(r"[A-Za-z0-9_-]{16,64}")
UNREAD_S = 600.0
"""Seconds without a reader after which a stream ends and is dropped."""
MAX_ENDED = 64
"""Ended streams of one owner; running ones are bounded by the slots and the queue."""
MAX_BYTES = 256 << 20
"""All streams of a server together."""
CHUNK_BYTES = 64
"""Memory of a chunk besides its content."""


class KeptStreams:
    """The kept streams of one server. Used by the event loop alone."""

    def __init__(self, heartbeat_s: float) -> None:
        self._heartbeat_s = heartbeat_s
        self._streams: dict[tuple[str, str], _Stream] = {}  # oldest first
        self._tasks: set[asyncio.Task[None]] = set()
        self.n_bytes = 0

    def name_of(self, headers: Mapping[str, str], owner: str) -> str | None:
        """The name under which a request wants its stream kept; None: it does not.

        Raises:
            ApiError: the name is malformed or taken.
        """
        name = headers.get(HEADER)
        if name is not None and not NAME.fullmatch(name):
            raise ApiError("invalid", f"the header {HEADER} must match {NAME.pattern}, got {name[:80]!r}", HEADER)
        if name is not None:
            self._check_free(owner, name)
        return name

    def start(self, owner: str, name: str, exchange: Exchange, writer: Writer, headers: Mapping[str, str]) -> Response:
        """Starts to keep a stream; the response that sends it.

        Raises:
            ApiError: the name is taken.
        """
        try:
            self._check_free(owner, name)
        except ApiError:
            exchange.cancel()
            raise
        key = (owner, name)
        stream = self._streams[key] = _Stream(exchange, writer, headers, self, lambda: self._drop(key))
        task = asyncio.create_task(stream.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return stream.response(self._heartbeat_s)

    def read(self, owner: str, name: str) -> Response:
        """The response that sends a stream from its start.

        Raises:
            ApiError: the name is unknown.
        """
        return self._find(owner, name).response(self._heartbeat_s)

    def delete(self, owner: str, name: str) -> None:
        """Ends a stream and drops it.

        Raises:
            ApiError: the name is unknown.
        """
        self._find(owner, name)
        self._drop((owner, name))

    def make_room(self, n_bytes: int) -> bool:
        """Drops the oldest ended streams until there is room for bytes of a running one; whether there is."""
        for key in [key for key, stream in self._streams.items() if stream.is_over]:
            if self.n_bytes + n_bytes <= MAX_BYTES:
                break
            self._drop(key)
        return self.n_bytes + n_bytes <= MAX_BYTES

    def drop_surplus(self) -> None:
        """Drops the oldest ended streams of owners with too many of them."""
        ended: dict[str, list[tuple[str, str]]] = {}
        for key, stream in self._streams.items():
            if stream.is_over:
                ended.setdefault(key[0], []).append(key)
        for keys in ended.values():
            for key in keys[:-MAX_ENDED]:
                self._drop(key)

    def _check_free(self, owner: str, name: str) -> None:
        if (owner, name) in self._streams:
            raise ApiError("invalid", f"there is a stream {name!r} already", HEADER)

    def _find(self, owner: str, name: str) -> _Stream:
        stream = self._streams.get((owner, name))
        if stream is None:
            raise ApiError("not_found", f"there is no stream {name!r}: it was deleted, or unread for {UNREAD_S:g} s")
        return stream

    def _drop(self, key: tuple[str, str]) -> None:
        self._streams.pop(key).close()


class _Stream:
    """What a writer has written so far, for any number of readers."""

    def __init__(
        self,
        exchange: Exchange,
        writer: Writer,
        headers: Mapping[str, str],
        streams: KeptStreams,
        drop: Callable[[], None],
    ) -> None:
        """drop: called when nobody has read the stream for a while."""
        self._exchange = exchange
        self._writer = writer
        self._headers = {**STREAM_HEADERS, **headers}
        self._streams = streams
        self._drop = drop
        self._chunks: list[bytes] = []
        self._n_bytes = 0
        self._changed = asyncio.Event()
        self._n_readers = 0
        self._is_dropped = self._is_full = False
        self._timer = self._expiry()
        self.is_over = False

    async def run(self) -> None:
        """Keeps what the writer writes, to the end of the answers."""
        try:
            await write_stream(self._exchange, self._writer, self._keep)
        finally:
            self._exchange.cancel()
            self.is_over = True
            self._wake()
            self._streams.drop_surplus()

    async def _keep(self, data: bytes) -> None:
        size = len(data) + CHUNK_BYTES
        if not self._is_full and not self._streams.make_room(size):
            self._is_full = True  # the error is the last chunk
            raise ApiError("too_large", f"the server's kept streams have more than {MAX_BYTES >> 20} MiB")
        self._chunks.append(data)
        if not self._is_dropped:
            self._n_bytes += size
            self._streams.n_bytes += size
        self._wake()

    def close(self) -> None:
        """Ends the answers; readers get what is kept and the end."""
        self._is_dropped = True
        self._timer.cancel()
        self._exchange.cancel()
        self._streams.n_bytes -= self._n_bytes

    def response(self, heartbeat_s: float) -> Response:
        return StreamingResponse(self._read(heartbeat_s), media_type=EVENTS, headers=self._headers)

    async def _read(self, heartbeat_s: float) -> AsyncIterator[bytes]:
        self._n_readers += 1
        self._timer.cancel()
        try:
            n_sent = 0
            while True:
                changed = self._changed
                if n_sent < len(self._chunks):
                    data, n_sent = b"".join(self._chunks[n_sent:]), len(self._chunks)
                    yield data
                elif self.is_over:
                    return
                else:
                    try:
                        await asyncio.wait_for(changed.wait(), heartbeat_s)
                    except asyncio.TimeoutError:
                        yield self._writer.beat()
        finally:
            self._n_readers -= 1
            if self._n_readers == 0 and not self._is_dropped:
                self._timer = self._expiry()

    def _expiry(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(UNREAD_S, self._drop)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
