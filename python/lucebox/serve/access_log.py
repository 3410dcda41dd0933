"""The access log: a line per request on stderr, without queries, headers and bodies. The outermost ASGI middleware."""

from __future__ import annotations

import sys
import time
from datetime import datetime, timezone

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["AccessLog"]


class AccessLog:
    """Writes `TIME CLIENT METHOD PATH STATUS BYTES SECONDS` once an answer has ended; status 0 if there was none."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status, n_bytes = time.perf_counter(), 0, 0

        async def counted(message: Message) -> None:
            nonlocal status, n_bytes
            status = message.get("status", status)
            n_bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, counted)
        finally:
            client = (scope.get("client") or ("-",))[0]
            at = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            took = time.perf_counter() - start
            path = scope["path"].encode("ascii", "backslashreplace").decode()
            path = "".join(char if char.isprintable() and char != " " else f"\\x{ord(char):02x}" for char in path)
            print(f"{at} {client} {scope['method']} {path} {status} {n_bytes} {took:.3f}", file=sys.stderr, flush=True)
