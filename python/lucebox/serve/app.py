"""The ASGI app: the routes of all protocols, access control, and errors in each protocol's format."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

from lucebox import __version__
from lucebox.api import LLM
from lucebox.errors import InvalidRequestError
from lucebox.serve import web_ui
from lucebox.serve.access_log import AccessLog
from lucebox.serve.errors import ApiError, Kind, body_of
from lucebox.serve.model_entry import ModelEntry
from lucebox.serve.model_set import ModelSet
from lucebox.serve.model_spec import ModelSpec
from lucebox.serve.protocols import (
    anthropic,
    info,
    kept_streams,
    llama_cpp,
    ollama,
    ollama_info,
    openai_chat,
    openai_completions,
    openai_embeddings,
    openai_responses,
    responses_context,
    score,
    served_models,
    stored_responses,
)
from lucebox.serve.protocols.refusals import refusal
from lucebox.serve.security import Guard
from lucebox.serve.server import Server
from lucebox.serve.settings import ServeSettings
from lucebox.serve.telemetry import Telemetry

__all__ = ["create_app", "middleware"]

ROUTERS = tuple(
    module.router
    for module in (
        openai_chat,
        openai_completions,
        openai_embeddings,
        score,
        openai_responses,
        responses_context,
        stored_responses,
        kept_streams,
        anthropic,
        ollama,
        ollama_info,
        llama_cpp,
        served_models,
        info,
        web_ui,
    )
)
KINDS: dict[int, Kind] = {404: "not_found", 405: "method", 413: "too_large", 415: "media_type"}


def create_app(llm: LLM | ModelSet, settings: ServeSettings | None = None, *, id_tag: str = "") -> FastAPI:
    """An ASGI app that serves a model, or a set of models, until the app's lifespan ends.

    id_tag: see `Server.id_tag`.

    The caller must not use an LLM during the lifespan, and closes it afterwards; it frees a set afterwards.

    Raises:
        OutOfMemoryError: the requested slots do not fit in memory.
        InvalidRequestError, OSError: the API keys cannot be read.
    """
    settings = settings or ServeSettings()
    models = llm if isinstance(llm, ModelSet) else _set_of(llm, settings)
    server = Server(models, settings, id_tag)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        models.start()
        yield
        await asyncio.to_thread(server.close)

    app = FastAPI(
        title="lucebox",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        middleware=middleware(settings),
    )
    app.state.server = server
    for router in ROUTERS:
        app.include_router(router)
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_fault)
    return app


def middleware(settings: ServeSettings) -> list[Middleware]:
    """The access log, CORS and access control, outermost first."""
    found = [Middleware(AccessLog)] if settings.access_log else []
    if settings.cors_origin:
        found.append(
            Middleware(
                _Cors,
                allow_origins=settings.cors_origin,
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
                expose_headers=["lucebox-compression", "lucebox-ignored", "retry-after"],
            )
        )
    return [*found, Middleware(Guard, settings=settings)]


def _set_of(llm: LLM, settings: ServeSettings) -> ModelSet:
    """The set of one model, which its caller keeps."""
    if settings.replicas > 1:
        raise InvalidRequestError("replicas are for `lucebox serve`, which loads them; this model is loaded already")
    telemetry = Telemetry.open(settings)
    spec = ModelSpec(llm.info.path, llm.options, settings, offline=True)
    return ModelSet([ModelEntry.pinned(llm, spec, telemetry)], telemetry, max_waiting=settings.max_queue)


class _Cors(CORSMiddleware):
    """CORS with Private Network Access: Chromium sends a preflight before a public site's page calls a private network,
    and this middleware allows it for listed origins."""

    def preflight_response(self, request_headers: Headers) -> Response:
        asked = "access-control-request-private-network"
        others = Headers(raw=[field for field in request_headers.raw if field[0].decode("latin-1").lower() != asked])
        response = super().preflight_response(others)
        if response.status_code == 200 and request_headers.get(asked) == "true":
            response.headers["access-control-allow-private-network"] = "true"
        return response


def _response(request: Request, error: ApiError, headers: dict[str, str] | None = None) -> Response:
    status, body = body_of(request.url.path, error)
    fields = dict(headers or {})
    if error.retry_after is not None:
        fields["retry-after"] = str(error.retry_after)
    return JSONResponse(body, status, fields)


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _response(request, error)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["loc"][0] != "body":
        name = str(first["loc"][-1])
        return _response(request, ApiError("invalid", f"{name}: {first['msg']}", name))
    return _response(request, refusal(error.body, error.errors()))


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = KINDS.get(error.status_code, "invalid")
    message = f"{request.method} {request.url.path}: {error.detail}"
    return _response(request, ApiError(kind, message), dict(error.headers or {}))


async def _on_fault(request: Request, error: Exception) -> Response:
    return _response(request, ApiError("internal", f"{type(error).__name__} in the server"))
