"""Informational routes: tokenization, health, metrics, status, and the routes that llama.cpp and vLLM clients query."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from lucebox import __version__
from lucebox.errors import LuceboxError
from lucebox.serve.body_route import body_router
from lucebox.serve.errors import ApiError, from_lucebox
from lucebox.serve.protocols.body import Body, Many, Name
from lucebox.serve.protocols.openapi import ERRORS, documented
from lucebox.serve.running_model import RunningModel
from lucebox.serve.server import server_of
from lucebox.serve.status import metrics_text, status_document
from lucebox.text.large_json import dump_large
from lucebox.text.length import BYTES_PER_TOKEN

__all__ = ["router"]

router = body_router()

MIN_TEXT = 1 << 20
"""Characters of a text to tokenize, whatever the context."""

# Fields of Sampling without a default in /props.
NOT_SHOWN = frozenset({"logit_bias", "logprobs", "stop", "stop_ids", "ignore_eos"})


class TokenizeRequest(Body):
    content: str | None = Field(None, description="The text.")
    prompt: str | None = Field(None, description="Another name of content.")
    model: Name | None = None
    add_special: bool = Field(False, description="Prepend the BOS token, if the model has one.")
    parse_special: bool = Field(True, description="Parse control tokens in the text.")
    with_pieces: bool = Field(False, description="Return each token as an object with its id and text.")


class DetokenizeRequest(Body):
    tokens: Many[int]
    model: Name | None = None


@router.get("/health", **documented("Whether the process is alive.", ERRORS, streams=False))
@router.get("/health/live", **documented("Whether the process is alive.", ERRORS, streams=False))
async def live() -> Response:
    return JSONResponse({"status": "ok"})


@router.get("/health/ready", **documented("Whether the server accepts requests.", ERRORS, streams=False))
async def ready(request: Request) -> Response:
    is_ready = server_of(request).models.is_accepting
    return JSONResponse({"status": "ok" if is_ready else "closing"}, 200 if is_ready else 503)


@router.post("/v1/tokenize", **documented("Tokenizes a text.", ERRORS, streams=False))
@router.post("/tokenize", include_in_schema=False)
async def tokenize(body: TokenizeRequest, request: Request) -> Response:
    running, _ = await server_of(request).use(request, body.model)
    model = running.model
    text = body.content if body.content is not None else body.prompt
    if text is None:
        raise ApiError("invalid", "content is missing", "content")
    if len(text) > (longest := max(MIN_TEXT, BYTES_PER_TOKEN * model.context)):
        raise ApiError("invalid", f"it has {len(text)} characters, more than {longest}", "content")
    tokenizer = model.loaded.tokenizer
    has_bos = body.add_special and tokenizer.bos_id is not None

    def make() -> bytes:
        ids = tokenizer.encode(text, special=body.parse_special, add_bos=has_bos)
        facts = {"count": len(ids), "max_model_len": model.context}
        if not body.with_pieces:
            return dump_large({"tokens": ids, **facts})
        # Texts, not objects: the garbage collector holds the GIL while it visits 200,000 objects.
        known = {i: dump_large({"id": i, "piece": _piece(tokenizer.token_bytes(i))}) for i in set(ids)}
        return b'{"tokens":[%s],%s' % (b",".join(known[i] for i in ids), dump_large(facts)[1:])

    try:
        return Response(await server_of(request).in_thread(request, make), media_type="application/json")
    except LuceboxError as error:
        raise from_lucebox(error) from error


def _piece(data: bytes) -> str | list[int]:
    """A token's text, or its bytes if they are not whole characters, as in llama.cpp."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


@router.post("/v1/detokenize", **documented("Detokenizes token ids.", ERRORS, streams=False))
@router.post("/detokenize", include_in_schema=False)
async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
    running, _ = await server_of(request).use(request, body.model)
    model = running.model

    def make() -> bytes:
        text = model.loaded.detokenize(body.tokens)
        return dump_large({"content": text, "prompt": text})

    try:
        return Response(await server_of(request).in_thread(request, make), media_type="application/json")
    except LuceboxError as error:
        raise from_lucebox(error) from error


@router.get("/props", **documented("Properties of the server, in llama.cpp's format.", ERRORS, streams=False))
@router.get("/v1/props", include_in_schema=False)
async def props(request: Request, model: str | None = None) -> Response:
    entry = server_of(request).models.find(model)
    shown: dict[str, Any] = {
        "default_generation_settings": {"n_ctx": entry.facts.context, "params": {}},
        "total_slots": entry.facts.slots,
        "model_alias": entry.name,
        "modalities": {"vision": False, "audio": False},
        "build_info": f"lucebox {__version__}",
        "status": {"value": entry.state},
    }
    return JSONResponse(shown if entry.running is None else shown | _props_of(entry.running))


def _props_of(running: RunningModel) -> dict[str, Any]:
    """The properties that only a loaded model has."""
    model, loaded = running.model, running.model.loaded
    template = loaded.chat_template
    sampling = model.profile.defaults(thinking=model.profile.thinking is not None, tools=False)
    params = {field.name: getattr(sampling, field.name) for field in fields(sampling) if field.name not in NOT_SHOWN}
    return {
        "default_generation_settings": {"n_ctx": model.context, "params": params},
        "chat_template": template.sources["default"] if template else "",
        "model": {
            "name": loaded.info.name,
            "architecture": loaded.info.architecture,
            "n_params": loaded.info.n_params,
            "context": model.context,
            "max_context": loaded.info.context_length,
        },
        "engine": {"device": loaded.device.name, "device_name": loaded.device.chip, "kernels": loaded.kernels},
    }


@router.get("/status", **documented("Counters, memory plan and recent requests; no text.", ERRORS, streams=False))
async def status(request: Request, model: str | None = None) -> Response:
    server = server_of(request)
    return JSONResponse(status_document(server, server.models.find(model)))


@router.get(
    "/metrics",
    summary="Metrics in Prometheus' text format.",
    response_class=PlainTextResponse,
    responses={401: ERRORS[401], 403: ERRORS[403]},
)
async def metrics(request: Request) -> Response:
    return PlainTextResponse(metrics_text(server_of(request)), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/server_info", include_in_schema=False)
@router.get("/get_server_info", include_in_schema=False)
async def server_info(request: Request) -> Response:
    """What sglang-router reads of a worker."""
    facts = server_of(request).models.default.facts
    return JSONResponse(
        {
            "served_model_name": facts.name,
            "model_path": facts.name,
            "max_running_requests": facts.slots,
            "context_length": facts.context,
            "version": __version__,
        }
    )


@router.get("/version", **documented("The server's version.", ERRORS, streams=False))
async def version() -> Response:
    return JSONResponse({"version": __version__})
