"""The server object that all routes share: the models, stored answers, and the delivery of answers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from lucebox.generation.answer import Answer
from lucebox.generation.request import GenerationRequest
from lucebox.serve.delivery import EVENTS, ErrorBody, Exchange, JsonAnswer, StreamedAnswer, Writer
from lucebox.serve.kept_streams import KeptStreams
from lucebox.serve.model_set import ModelSet
from lucebox.serve.preparation import Preparation
from lucebox.serve.protocols.compression import compression_header
from lucebox.serve.responses_store import ResponseStore
from lucebox.serve.running_model import RunningModel
from lucebox.serve.settings import ServeSettings

__all__ = ["Server", "ignored_header", "owner_of", "server_of"]

T = TypeVar("T")


class Server:
    def __init__(self, models: ModelSet, settings: ServeSettings, id_tag: str) -> None:
        self.settings = settings
        self.id_tag = id_tag
        """First digits of the ids of stored responses and their items; empty unless the server is a replica."""
        self.models = models
        self.metrics = models.telemetry.metrics
        self._preparation = Preparation(settings.max_queue)
        self.responses = ResponseStore()
        self._closing = threading.Lock()
        self._is_closed = False
        self.streams = KeptStreams(settings.heartbeat)
        self.background: dict[str, asyncio.Task[None]] = {}
        """Tasks of background responses, by response id."""

    def close(self) -> None:
        """Lets running answers finish for `settings.drain` seconds, and stops all threads. Later calls wait for it."""
        with self._closing:
            if self._is_closed:
                return
            self._is_closed = True
            self.models.close(self.settings.drain)
            self._preparation.close()

    async def use(self, request: Request, requested: str | None) -> tuple[RunningModel, str]:
        """The model that a request names, and its name for the response; see `ModelSet.use`."""
        return await self.models.use(requested, request)

    async def in_thread(self, request: Request, make: Callable[[], T]) -> T:
        """Runs work that would block the event loop: rendering, tokenization and grammars.

        Raises:
            ApiError: too many requests wait for a thread, or the client has left.
        """
        return await self._preparation.run(request, make)

    def _exchange(
        self, running: RunningModel, requests: Sequence[GenerationRequest], *, with_progress: bool = False
    ) -> Exchange:
        return Exchange(running.scheduler, requests, self.metrics.mean_request_s(), with_progress=with_progress)

    def stream(
        self,
        running: RunningModel,
        requests: Sequence[GenerationRequest],
        writer: Writer,
        ignored: Sequence[str],
        name: str | None = None,
        owner: str = "",
        *,
        media_type: str = EVENTS,
        kept_name: str | None = None,
        with_progress: bool = False,
    ) -> Response:
        """Queues the requests and streams their answers. With a name, their owner can cancel them. With kept_name, they
        go on without their client, which may read the stream again by that name.

        Raises:
            ApiError: the queue is full, or the server is shutting down.
        """
        exchange = self._exchange(running, requests, with_progress=with_progress)
        headers = _headers(requests, ignored)
        if name is not None:
            self.responses.started(name, exchange, owner)
        if kept_name is not None:
            return self.streams.start(owner, kept_name, exchange, writer, headers)
        return StreamedAnswer(exchange, writer, self.settings.heartbeat, media_type, headers)

    def in_background(
        self,
        name: str,
        owner: str,
        running: RunningModel,
        requests: Sequence[GenerationRequest],
        consume: Callable[[Exchange], Coroutine[Any, Any, None]],
    ) -> None:
        """Queues the requests and consumes their items in a task without a client. Their owner can cancel them.

        Raises:
            ApiError: the queue is full, or the server is shutting down.
        """
        exchange = self._exchange(running, requests)
        self.responses.started(name, exchange, owner)
        self.background[name] = task = asyncio.create_task(consume(exchange))
        task.add_done_callback(lambda _: self.background.pop(name))

    def document(
        self,
        running: RunningModel,
        requests: Sequence[GenerationRequest],
        write: Callable[[list[Answer]], dict[str, Any]],
        error_body: ErrorBody,
        ignored: Sequence[str],
    ) -> Response:
        """Queues the requests and sends their answers as one JSON document.

        Raises:
            ApiError: the queue is full, or the server is shutting down.
        """
        exchange = self._exchange(running, requests)
        return JsonAnswer(exchange, len(requests), write, error_body, _headers(requests, ignored))


def server_of(request: Request) -> Server:
    server = request.app.state.server
    assert isinstance(server, Server)
    return server


def owner_of(request: Request) -> str:
    """The digest of the request's API key, which the guard has checked; empty without keys."""
    owner = request.scope.get("lucebox.owner", "")
    assert isinstance(owner, str)
    return owner


def _headers(requests: Sequence[GenerationRequest], ignored: Sequence[str]) -> dict[str, str]:
    return {**ignored_header(ignored), **compression_header([request.compression for request in requests])}


def ignored_header(ignored: Sequence[str]) -> dict[str, str]:
    """The response header that names the ignored fields."""
    return {"lucebox-ignored": ", ".join(ignored)} if ignored else {}
