"""uvicorn's connection with limits of time: a client must send a request's head, and take what is sent to it."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["limited_connection"]


def limited_connection(head_timeout_s: float, write_timeout_s: float) -> type[H11Protocol]:
    """The protocol class for uvicorn, which makes one object for each connection."""

    class Connection(H11Protocol):
        _head_timer: asyncio.TimerHandle | None = None
        _write_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._head_timer = self.loop.call_later(head_timeout_s, self._drop_without_head)

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._head_timer, self._write_timer):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._write_timer = self.loop.call_later(write_timeout_s, self.transport.abort)

        def resume_writing(self) -> None:
            if self._write_timer is not None:
                self._write_timer.cancel()
            super().resume_writing()

        def _drop_without_head(self) -> None:
            if self.cycle is None:  # no request yet; between requests uvicorn's own keep-alive timer runs
                self.transport.abort()

    return Connection
