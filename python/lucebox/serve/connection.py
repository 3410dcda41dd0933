"""uvicorn's HTTP connection with limits on slow and oversized clients. It ignores offers to upgrade the protocol.

A request's head must arrive in time and fit in MAX_HEAD bytes; its body must arrive in time. A client that stops
reading is dropped.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["limited_connection"]

GRACE_S = 1.0
"""For the client to read the answer to a body that did not arrive in time."""
MAX_HEAD = 64 << 10  # bytes of request line and headers


class _Parser(httptools.HttpRequestParser):
    """After a head that offers an upgrade, httptools treats all further data, even the request's body, as the other
    protocol. A server may ignore the offer and answer the request (RFC 9110, 7.8)."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._connection = connection
        with suppress(AttributeError):  # httptools before 0.6.3
            self.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does

    def feed_data(self, data: Any) -> None:
        parser, rest = self, memoryview(data)
        while True:
            try:
                super(_Parser, parser).feed_data(rest)
                return
            except httptools.HttpParserUpgrade as offer:
                if not self._connection.offers_upgrade():
                    raise
                parser, rest = self._connection.parse_without_offer(), rest[offer.args[0] :]


def limited_connection(head_timeout_s: float, write_timeout_s: float) -> type[HttpToolsProtocol]:
    """A protocol class for uvicorn, which makes one instance per connection."""

    class Connection(HttpToolsProtocol):
        _head_timer: asyncio.TimerHandle | None = None
        _body_timer: asyncio.TimerHandle | None = None
        _write_timer: asyncio.TimerHandle | None = None
        _head_bytes = 0  # received so far of the current head
        _is_in_body = False
        _n_ends = 0  # heads and bodies completed

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.parser = _Parser(self)

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._expect_head()

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._head_timer, self._body_timer, self._write_timer):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            n_ends = self._n_ends
            super().data_received(data)
            if self._is_in_body or self._n_ends != n_ends or self.transport.is_closing():
                return  # a read that completes a head or body is not counted, including bytes after its end
            self._expect_head()
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD:
                self.send_400_response(f"the head of the request has more than {MAX_HEAD} bytes")

        def on_message_begin(self) -> None:
            self._expect_head()
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            if self.offers_upgrade():
                return  # the head is parsed again without the offer
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
            # The guard answers a body that is late. This closes the connection if the client sends on all the same.
            self._body_timer = self.loop.call_later(head_timeout_s + GRACE_S, self.transport.abort)
            self._is_in_body, self._n_ends = True, self._n_ends + 1
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            if self.offers_upgrade():
                return
            if self._body_timer is not None:
                self._body_timer.cancel()
            self._head_bytes, self._is_in_body, self._n_ends = 0, False, self._n_ends + 1
            super().on_message_complete()

        def offers_upgrade(self) -> bool:
            """Whether the current head offers an upgrade. CONNECT is a different kind of request."""
            return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

        def parse_without_offer(self) -> _Parser:
            """Parses the current head again without its offer to upgrade; returns the parser for the data after the
            head."""
            version = self.parser.get_http_version().encode()
            lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
            lines += [b"%s: %s" % field for field in self.headers if field[0] != b"upgrade"]
            self.parser = parser = _Parser(self)
            parser.feed_data(b"\r\n".join([*lines, b"", b""]))
            return parser

        def pause_writing(self) -> None:
            super().pause_writing()
            self._write_timer = self.loop.call_later(write_timeout_s, self.transport.abort)

        def resume_writing(self) -> None:
            if self._write_timer is not None:
                self._write_timer.cancel()
            super().resume_writing()

        def _expect_head(self) -> None:
            """Starts the time-out of a head that has begun. Between requests, uvicorn's keep-alive timer applies."""
            if self._head_timer is None:
                self._head_timer = self.loop.call_later(head_timeout_s, self.transport.abort)

    return Connection
