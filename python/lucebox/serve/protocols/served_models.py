"""The models of the server: /v1/models lists them; each can be loaded, unloaded and asked for its state."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lucebox.serve.body_route import body_router
from lucebox.serve.model_entry import ModelEntry
from lucebox.serve.protocols.openapi import ERRORS, documented
from lucebox.serve.server import Server, server_of

__all__ = ["router"]

router = body_router()


@router.get("/v1/models", **documented("Lists the models.", ERRORS, streams=False))
async def models(request: Request) -> Response:
    server = server_of(request)
    data = [_document(server, entry) for entry in server.models.firsts]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]}
    return JSONResponse({"object": "list", "data": data, "has_more": False, **ends})


@router.post("/v1/models/{name:path}/load", **documented("Loads a model.", ERRORS, streams=False))
async def load(name: str, request: Request) -> Response:
    server = server_of(request)
    return JSONResponse(_document(server, await server.models.load(name, request)))


@router.post("/v1/models/{name:path}/unload", **documented("Unloads a model that is not busy.", ERRORS, streams=False))
async def unload(name: str, request: Request) -> Response:
    server = server_of(request)
    return JSONResponse(_document(server, await server.models.unload(name)))


@router.get("/v1/models/{name:path}", **documented("Describes a model.", ERRORS, streams=False))
async def model(name: str, request: Request) -> Response:
    server = server_of(request)
    return JSONResponse({**_document(server, server.models.find(name)), "id": name})


def _document(server: Server, entry: ModelEntry) -> dict[str, Any]:
    """The model with its state, and its limits under the names that clients of OpenAI, Anthropic and vLLM read."""
    created = datetime.fromtimestamp(entry.created, timezone.utc)
    context = entry.facts.context
    return {
        "id": entry.name,
        "object": "model",
        "type": "model",
        "display_name": entry.name,
        "created": entry.created,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "owned_by": "lucebox",
        "context_length": context,
        "context_window": context,
        "max_context_length": entry.facts.max_context,
        "max_model_len": context,
        "max_input_tokens": context,
        "max_tokens": min(entry.spec.settings.max_tokens or context, context),
        "status": server.models.status(entry) | {"would_unload": _would_unload(server, entry)},
    }


def _would_unload(server: Server, entry: ModelEntry) -> list[str]:
    leaving = [one.name for replica in server.models.replicas(entry) for one in server.models.leaving_for(replica)]
    return list(dict.fromkeys(leaving))
