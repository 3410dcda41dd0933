"""Runs the app under uvicorn until a signal ends it."""

from __future__ import annotations

import asyncio
import math
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn

from lucebox.serve.app import create_app
from lucebox.serve.connection import limited_connection
from lucebox.serve.model_set import ModelSet
from lucebox.serve.settings import ServeSettings

__all__ = ["serve"]

DELIVERY_S = 10
"""For the errors of unfinished answers to reach their clients."""
BACKLOG = 256  # listen() backlog: connections waiting in the kernel


class _Server(uvicorn.Server):
    """Reports its address once it listens. At its end, every client gets an answer or an error."""

    def __init__(self, config: uvicorn.Config, on_start: Callable[[str], None], close: Callable[[], None]) -> None:
        """close: ends the running answers after the time that they have left; it may block."""
        super().__init__(config)
        self._on_start = on_start
        self._close = close

    async def shutdown(self, sockets: Any = None) -> None:
        """Ends the answers before uvicorn's own time-out, which would cut their connections."""
        closing = asyncio.create_task(asyncio.to_thread(self._close))
        await super().shutdown(sockets)
        await closing

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if not self.started:
            return
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        scheme = "https" if self.config.is_ssl else "http"
        self._on_start(f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}")


def serve(
    models: ModelSet, settings: ServeSettings, sockets: Sequence[socket.socket], on_start: Callable[[str], None]
) -> None:
    """Serves models until SIGINT or SIGTERM, then lets running answers finish for `settings.drain` seconds.

    sockets: bound_sockets(settings).
    on_start: called with the URL.

    Raises:
        InvalidRequestError: the address is public and there is no key.
    """
    settings.check_exposure()
    app = create_app(models, settings)
    config = uvicorn.Config(
        app,
        http=limited_connection(settings.body_timeout, settings.write_timeout),
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=math.ceil(settings.drain) + DELIVERY_S,
        ssl_certfile=settings.ssl_certfile,
        ssl_keyfile=settings.ssl_keyfile,
    )
    # uvicorn re-raises the signal after shutdown; these handlers swallow it.
    previous = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        _Server(config, on_start, app.state.server.close).run(list(sockets))
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
