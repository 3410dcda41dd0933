"""Routes of stored and running responses: /v1/responses/{id}, .../input_items and .../cancel."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lucebox.serve.protocols.openapi import ERRORS, documented
from lucebox.serve.server import owner_of, server_of

__all__ = ["router"]

router = APIRouter()


@router.get("/v1/responses/{response_id}", **documented("Fetches a stored response.", ERRORS, streams=False))
async def retrieve(response_id: str, request: Request) -> Response:
    return JSONResponse(server_of(request).responses.get(response_id, owner_of(request)).document)


@router.get("/v1/responses/{response_id}/input_items", **documented("The input of a response.", ERRORS, streams=False))
async def input_items(response_id: str, request: Request) -> Response:
    items = server_of(request).responses.get(response_id, owner_of(request)).input
    first, last = (items[0]["id"], items[-1]["id"]) if items else (None, None)
    return JSONResponse({"object": "list", "data": items, "has_more": False, "first_id": first, "last_id": last})


@router.delete("/v1/responses/{response_id}", **documented("Deletes a stored response.", ERRORS, streams=False))
async def delete(response_id: str, request: Request) -> Response:
    server = server_of(request)
    server.responses.delete(response_id, owner_of(request))
    if response_id in server.background:
        server.responses.cancel(response_id, owner_of(request))
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


@router.post("/v1/responses/{response_id}/cancel", **documented("Cancels a response.", ERRORS, streams=False))
async def cancel(response_id: str, request: Request) -> Response:
    """A stream that is cancelled ends with response.failed. A response that has ended stays unchanged."""
    server = server_of(request)
    owner = owner_of(request)
    server.responses.cancel(response_id, owner)
    if task := server.background.get(response_id):
        await asyncio.wait([task])  # cancelled jobs end before their next turn
    stored = server.responses.find(response_id, owner)
    return JSONResponse(stored.document if stored else {"id": response_id, "object": "response", "status": "cancelled"})
