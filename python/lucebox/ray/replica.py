"""`Replica`: a model with the app of `lucebox serve`, in a process of a Ray cluster."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from ray import serve
from starlette.types import Message

from lucebox.api import LLM
from lucebox.ray.merging import merged
from lucebox.ray.relayed import REPLICA_HEADER, Head, Relayed, replica_tag
from lucebox.serve.app import create_app
from lucebox.serve.model_spec import ModelSpec
from lucebox.serve.server import Server

__all__ = ["CHECK_TIMEOUT_S", "Replica"]

log = logging.getLogger("ray.serve")
CHECK_TIMEOUT_S = 30
"""Limit of a health check, which computes a token if no other request runs."""


class Replica:
    """A deployment. The app runs without a socket: requests come from the ingress."""

    async def __init__(self, spec: ModelSpec) -> None:  # type: ignore[misc]  # Ray awaits it
        """
        Raises:
            LuceboxError: as `LLM`.
        """
        replica_id = serve.get_replica_context().replica_id
        # The ingress logs requests.
        self._settings = replace(spec.settings, access_log=False)
        self._llm = await asyncio.to_thread(lambda: LLM(spec.model, offline=spec.offline, **spec.keywords()))
        self._tag = replica_tag(replica_id.deployment_id.name, replica_id.unique_id)
        self._app = create_app(self._llm, self._settings, id_tag=self._tag)
        self._lifespan = self._app.router.lifespan_context(self._app)
        await self._lifespan.__aenter__()
        self._running: set[asyncio.Task[None]] = set()
        self._work = 0.0

    async def __call__(self, relayed: Relayed) -> AsyncIterator[Head | bytes]:
        """The head and then the parts of the body of a response. The app sees a disconnected client if the caller ends
        the iteration early."""
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        unread: list[Message] = [{"type": "http.request", "body": relayed.body, "more_body": False}]
        left = asyncio.Event()

        async def receive() -> Message:
            if unread:
                return unread.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        task = asyncio.create_task(self._run(relayed, receive, messages))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            async for message in merged(messages, task):
                if message["type"] == "http.response.start":
                    yield Head(message["status"], [*message.get("headers", ()), (REPLICA_HEADER, self._tag.encode())])
                elif message["type"] == "http.response.body":
                    yield message["body"]
        finally:
            left.set()

    async def _run(self, relayed: Relayed, receive: Any, messages: asyncio.Queue[Message | None]) -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": relayed.method,
            "scheme": "http",
            "path": relayed.path,
            "raw_path": relayed.path.encode(),
            "query_string": relayed.query,
            "root_path": "",
            "headers": relayed.headers,
            "client": relayed.client,
            "server": None,
        }
        try:
            await self._app(scope, receive, messages.put)
        except Exception:  # the app has sent an error
            log.exception("%s %s failed", relayed.method, relayed.path)
        finally:
            messages.put_nowait(None)

    async def check_health(self) -> None:
        """Raises an error unless the model has computed something since the last check, or now answers a token."""
        work = self._done_work()
        if work == self._work:
            await asyncio.wait_for(self._token(), CHECK_TIMEOUT_S - 1)
            work = self._done_work()
        self._work = work

    def _done_work(self) -> float:
        server = self._app.state.server
        assert isinstance(server, Server)
        return server.metrics.generated_tokens.value + server.metrics.prefill_s.value

    async def _token(self) -> None:
        keys = self._settings.all_keys()
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        headers += [(b"x-api-key", keys[0].encode())] if keys else []
        body = json.dumps({"prompt": "a", "max_tokens": 1}).encode()
        asked = Relayed("POST", "/v1/completions", b"", headers, None, body)
        answer = [part async for part in self(asked)]
        head = answer[0]
        assert isinstance(head, Head)
        if head.status != 200:
            said = b"".join(part for part in answer[1:] if isinstance(part, bytes)).decode()
            raise RuntimeError(f"a token was answered with {head.status}: {said}")

    async def __del__(self) -> None:
        """Called by Ray when the last request has ended. Writes what the prefix cache keeps on disk."""
        await self._lifespan.__aexit__(None, None, None)
        self._llm.close()
