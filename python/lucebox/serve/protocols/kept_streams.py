"""Routes of kept streams: /v1/streams/{name}."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lucebox.serve.protocols.openapi import ERRORS, documented
from lucebox.serve.server import owner_of, server_of

__all__ = ["router"]

router = APIRouter()


@router.get("/v1/streams/{name}", **documented("A kept stream from its start.", ERRORS))
async def read(name: str, request: Request) -> Response:
    """The events so far, then the others as they come."""
    return server_of(request).streams.read(owner_of(request), name)


@router.delete("/v1/streams/{name}", **documented("Ends a kept stream.", ERRORS, streams=False))
async def delete(name: str, request: Request) -> Response:
    server_of(request).streams.delete(owner_of(request), name)
    return JSONResponse({"id": name, "object": "stream", "deleted": True})
