"""Merges the parts of a stream, because each part that a replica sends takes processor time in three processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.types import Message

__all__ = ["merged"]

MERGE_S = 0.03
"""Parts of a stream are at least this far apart. Readers do not see it, and a client's first token does not wait."""


async def merged(messages: asyncio.Queue[Message | None], app: asyncio.Task[None]) -> AsyncIterator[Message]:
    """The messages of an app's response up to None. A body's part waits until MERGE_S after the one before or the app's
    end, and takes with it those that came meanwhile.

    app: puts the messages.
    """
    clock = asyncio.get_running_loop().time
    next_at, has_ended = clock(), False
    while not has_ended and (message := await messages.get()) is not None:
        if message["type"] != "http.response.body":
            yield message
            continue
        if (wait := next_at - clock()) > 0:
            await asyncio.wait({app}, timeout=wait)
        parts = [message.get("body", b"")]
        while not has_ended and not messages.empty():
            following = messages.get_nowait()
            has_ended = following is None
            parts.append(b"" if following is None else following.get("body", b""))
        if data := b"".join(parts):
            next_at = clock() + MERGE_S
            yield {"type": "http.response.body", "body": data}
