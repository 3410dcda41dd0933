"""Routes that parse and validate a large body in a worker thread, in steps that let the event loop run. At their end
they leave the models that they used: the schedulers know of the request by then."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.responses import Response

from lucebox.errors import InvalidRequestError
from lucebox.serve.errors import ApiError
from lucebox.serve.model_set import DIGESTS, LEAVE
from lucebox.serve.prefix_digests import prefix_digests
from lucebox.text.large_json import load_json

__all__ = ["body_router"]

SMALL = 16 << 10
"""Bytes that are parsed on the event loop, in at most a few milliseconds."""
LARGE = 2 << 20
"""Bytes of a body that waits for the threads of large ones."""

_MEDIUM_THREADS = ThreadPoolExecutor(4, "lucebox-body")
_LARGE_THREADS = ThreadPoolExecutor(2, "lucebox-large-body")


def body_router() -> APIRouter:
    return APIRouter(route_class=_BodyRoute)


class _ParsedRequest(Request):
    """A request whose body is an instance of the route's model already."""

    def __init__(self, request: Request, body: BaseModel) -> None:
        super().__init__(request.scope, request.receive)
        self._body = b"{}"  # its JSON is `body`
        self._parsed = body

    async def json(self) -> BaseModel:
        return self._parsed


class _BodyRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        model = None if self.body_field is None else self.body_field.field_info.annotation
        assert model is None or (isinstance(model, type) and issubclass(model, BaseModel))

        async def handle(request: Request) -> Response:
            try:
                return await parse_and_handle(request)
            finally:
                for leave in request.scope.pop(LEAVE, ()):
                    leave()

        async def parse_and_handle(request: Request) -> Response:
            if model is not None and (data := await request.body()):
                with_digests = request.app.state.server.models.has_replicas
                if len(data) <= SMALL:
                    body, digests = _parsed(data, model, with_digests)
                else:
                    threads = _MEDIUM_THREADS if len(data) <= LARGE else _LARGE_THREADS
                    loop = asyncio.get_running_loop()
                    body, digests = await loop.run_in_executor(threads, _parsed, data, model, with_digests)
                request.scope[DIGESTS] = digests
                request = _ParsedRequest(request, body)
            return await handler(request)

        return handle


def _parsed(data: bytes, model: type[BaseModel], with_digests: bool) -> tuple[BaseModel, tuple[bytes, ...]]:
    """The body as an instance of the model, and with_digests, the digests of its prompt's prefixes.

    Raises:
        ApiError: it is no JSON, or has too many values.
        RequestValidationError: it is another JSON.
    """
    try:
        value = load_json(data, "the body")
    except InvalidRequestError as error:
        raise ApiError("invalid", str(error)) from None
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise ApiError("invalid", f"the body is not JSON: {reason}") from None
    try:
        return model.model_validate(value), prefix_digests(value) if with_digests else ()
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        raise RequestValidationError(
            [{**fault, "loc": ("body", *fault["loc"])} for fault in faults], body=value
        ) from None
