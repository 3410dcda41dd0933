"""uvicorn's connection with limits on slow and oversized clients.

A request's head must arrive in time and fit in MAX_HEAD bytes. A client that stops reading is dropped.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["limited_connection"]

MAX_HEAD = 64 << 10  # bytes of request line and headers


def limited_connection(head_timeout_s: float, write_timeout_s: float) -> type[HttpToolsProtocol]:
    """A protocol class for uvicorn, which makes one instance per connection."""

    class Connection(HttpToolsProtocol):
        _head_timer: asyncio.TimerHandle | None = None
        _write_timer: asyncio.TimerHandle | None = None
        _head_bytes = 0  # received so far of the current head
        _is_in_body = False
        _n_ends = 0  # heads and bodies completed

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect_head()

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._head_timer, self._write_timer):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            n_ends = self._n_ends
            super().data_received(data)
            if self._is_in_body or self._n_ends != n_ends or self.transport.is_closing():
                return  # data that completes a head or body is not counted, not even the bytes after its end
            self._expect_head()
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD:
                self.send_400_response(f"the head of the request has more than {MAX_HEAD} bytes")

        def on_message_begin(self) -> None:
            self._expect_head()
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
            self._is_in_body, self._n_ends = True, self._n_ends + 1
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._head_bytes, self._is_in_body, self._n_ends = 0, False, self._n_ends + 1
            super().on_message_complete()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._write_timer = self.loop.call_later(write_timeout_s, self.transport.abort)

        def resume_writing(self) -> None:
            if self._write_timer is not None:
                self._write_timer.cancel()
            super().resume_writing()

        def _expect_head(self) -> None:
            """Limits the time of a head that has begun; between requests uvicorn's own keep-alive timer runs."""
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(head_timeout_s, self.transport.abort)

    return Connection
