"""`Ingress`: accepts all requests of a cluster, and relays each to a replica of its model."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from grpc.aio import AioRpcError
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from lucebox.errors import InvalidRequestError
from lucebox.ray.relayed import REPLICA_HEADER, Head, Relayed, model_tag, stored_tag
from lucebox.serve.app import middleware
from lucebox.serve.body_route import SMALL
from lucebox.serve.delivery import json_line, sse
from lucebox.serve.errors import ApiError, body_of, overloaded
from lucebox.serve.kept_streams import HEADER as STREAM_HEADER
from lucebox.serve.prefix_digests import prefix_digests
from lucebox.serve.security import error_response
from lucebox.serve.settings import ServeSettings
from lucebox.text.large_json import load_json

__all__ = ["Ingress", "Served"]

MAX_TRIES = 3
RETRY_S = 1
MAX_STREAMS = 10_000
METHODS = ["GET", "POST", "DELETE", "PUT", "PATCH", "OPTIONS"]
LISTS = {"/v1/models": "data", "/api/tags": "models"}
"""Routes that list models, and the field with the list."""
LOST = (
    "the replica that computed this answer was lost before its end: send the request again. Another replica will "
    "compute it"
)


@dataclass(frozen=True, slots=True)
class Served:
    """A model of the cluster. Without a name it is the only one, and every name is sent to it."""

    name: str | None
    alias: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Read:
    """The parts of a request that choose its replica."""

    model: str | None
    digests: tuple[bytes, ...]
    tag: str | None


class Ingress:
    """A deployment. Its app has the access control of `lucebox serve`; the protocols are the replicas'."""

    def __init__(self, settings: ServeSettings, models: Sequence[Served], *handles: Any) -> None:
        """handles: one for the deployment of each model, in their order."""
        self._settings = settings
        self._models = list(zip(models, [handle.options(stream=True) for handle in handles], strict=True))
        self._streams: OrderedDict[str, str] = OrderedDict()
        """Tag of the replica of each kept stream, by the stream's name."""

    def __serve_build_asgi_app__(self) -> Starlette:
        async def relay(request: Request) -> Response:
            return await self._relay(request)

        return Starlette(routes=[Route("/{path:path}", relay, methods=METHODS)], middleware=middleware(self._settings))

    async def _relay(self, request: Request) -> Response:
        path, data = request.url.path, await request.body()
        read = await asyncio.to_thread(_read, path, data) if len(data) > SMALL else _read(path, data)
        relayed = Relayed(
            method=request.method,
            path=path,
            query=request.scope["query_string"],
            headers=list(request.scope["headers"]),
            client=request.scope.get("client"),
            body=data,
            digests=read.digests,
            tag=read.tag or self._stream_tag(path),
        )
        if request.method == "GET" and path in LISTS and len(self._models) > 1:
            return await self._list(relayed, LISTS[path])
        try:
            handle = self._handle(path, read.model, relayed.tag)
        except ApiError as error:
            return _Refusal(error)
        return _Relay(self, handle, relayed)

    # --- which model

    def _handle(self, path: str, name: str | None, tag: str | None) -> Any:
        """The deployment of the model that a request names, or else of the replica with the tag, or else the first.

        Raises:
            ApiError: there is none.
        """
        if len(self._models) == 1:
            return self._models[0][1]
        if name is None:
            handles = (handle for _, handle in self._models)
            stored = (one for one in handles if tag is not None and tag.startswith(model_tag(one.deployment_name)))
            return next(stored, self._models[0][1])
        if path.startswith("/api/"):  # Ollama's clients add a tag
            name = name.removesuffix(":latest")
        for served, handle in self._models:
            if served.name == name:
                return handle
        for served, handle in self._models:
            if any(fnmatchcase(name, alias) for alias in served.alias):
                return handle
        names = ", ".join(repr(served.name) for served, _ in self._models)
        raise ApiError(
            "not_found", f"The model {name!r} does not exist; this cluster has {names}", "model", "model_not_found"
        )

    async def _list(self, relayed: Relayed, field: str) -> Response:
        """The lists of all models as one."""
        documents = []
        for _, handle in self._models:
            try:
                head, *parts = [part async for part in _parts(handle, relayed)]
            except ApiError as error:
                return _Refusal(error)
            assert isinstance(head, Head)
            data = b"".join(part for part in parts if isinstance(part, bytes))
            if head.status != 200:
                fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
                return Response(data, head.status, fields)
            documents.append(json.loads(data))
        merged = documents[0] | {field: [one for document in documents for one in document[field]]}
        if "last_id" in merged:
            merged["last_id"] = documents[-1]["last_id"]
        return JSONResponse(merged)

    # --- kept streams

    def _stream_tag(self, path: str) -> str | None:
        name = path.removeprefix("/v1/streams/")
        return None if name == path else self._streams.get(name)

    def note(self, relayed: Relayed, tag: str) -> None:
        """Remembers which replica keeps a stream."""
        for name, value in relayed.headers:
            if name == STREAM_HEADER.encode():
                self._streams[value.decode("latin-1")] = tag
                if len(self._streams) > MAX_STREAMS:
                    self._streams.popitem(last=False)


class _Refusal(Response):
    """An error in the protocol of the request's path."""

    def __init__(self, error: ApiError) -> None:
        super().__init__()
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await error_response(scope["path"], self._error, send)


class _Relay(Response):
    """A replica's response. If a replica is lost before anything was sent, another one computes the answer."""

    def __init__(self, ingress: Ingress, handle: Any, relayed: Relayed) -> None:
        super().__init__()
        self._ingress = ingress
        self._handle = handle
        self._relayed = relayed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        relay = asyncio.create_task(self._send(send))
        watch = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({relay, watch}, return_when=asyncio.FIRST_COMPLETED)
            if relay.done():
                await relay
        finally:
            watch.cancel()
            relay.cancel()

    async def _send(self, send: Send) -> None:
        for attempt in range(1, MAX_TRIES + 1):
            head: Head | None = None
            has_begun = False
            n_events = 0
            try:
                async for part in _parts(self._handle, self._relayed):
                    if isinstance(part, Head):
                        head = part
                        self._note(part)
                        continue
                    if head is not None and not has_begun:
                        has_begun = True
                        await send({"type": "http.response.start", "status": head.status, "headers": head.headers})
                    n_events += part.count(b"\ndata: ")
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                if head is not None and not has_begun:
                    await send({"type": "http.response.start", "status": head.status, "headers": head.headers})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            except ApiError as error:
                if has_begun:
                    assert head is not None
                    data = failure_part(self._relayed.path, _field(head, b"content-type"), error, n_events)
                    await send({"type": "http.response.body", "body": data, "more_body": False})
                    return
                if error.message != LOST or attempt == MAX_TRIES:
                    await error_response(self._relayed.path, error, send)
                    return

    def _note(self, head: Head) -> None:
        if tag := _field(head, REPLICA_HEADER):
            self._ingress.note(self._relayed, tag)


async def _parts(handle: Any, relayed: Relayed) -> AsyncIterator[Head | bytes]:
    """The head and the body's parts of a replica's response. Ends the answer on the
    replica when the caller ends the iteration.

    Raises:
        ApiError: no replica takes the request, or the one that took it was lost.
    """
    answer = handle.remote(relayed)
    has_ended = False
    try:
        async for part in answer:
            yield part
        has_ended = True
    except BackPressureError as error:
        raise overloaded("all replicas are busy, and their queue is full", RETRY_S) from error
    except DeploymentUnavailableError as error:
        raise ApiError("internal", f"the model could not be started: {error}") from error
    except RayTaskError as error:  # of the replica's code
        raise ApiError("internal", f"{type(error.cause).__name__} in a replica") from error
    except (RayError, ReplicaUnavailableError, AioRpcError) as error:
        raise overloaded(LOST, RETRY_S) from error
    finally:
        if not has_ended:
            answer.cancel()


def failure_part(path: str, content_type: str, error: ApiError, n_events: int) -> bytes:
    """The end of a stream that cannot go on, in the protocol of its path. n_events: sent before."""
    _, body = body_of(path, error)
    if "ndjson" in content_type:
        return json_line(body)
    if "event-stream" not in content_type:
        return b""
    if path == "/v1/responses":
        fault = body["error"]
        code = fault["code"] or fault["type"]
        event = {"type": "error", "code": code, "message": fault["message"], "param": None}
        return sse({**event, "sequence_number": n_events}, "error")
    return sse(body, "error" if path.startswith("/v1/messages") else None)


def _field(head: Head, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in head.headers if key == name), "")


def _read(path: str, data: bytes) -> _Read:
    """A body that is no JSON has nothing to read: the replica refuses it."""
    try:
        body = load_json(data, "the body") if data else None
    except (InvalidRequestError, ValueError, RecursionError):
        body = None
    name = body.get("model", body.get("name")) if isinstance(body, dict) else _model_in(path)
    return _Read(name if isinstance(name, str) else None, prefix_digests(body), stored_tag(path, body))


def _model_in(path: str) -> str | None:
    """The model that a path of /v1/models names."""
    name = path.removeprefix("/v1/models/")
    if name == path:
        return None
    return name.removesuffix("/load").removesuffix("/unload")


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
