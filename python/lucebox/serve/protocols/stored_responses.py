"""Routes of stored and running responses: /v1/responses/{id}, .../input_items and .../cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Query
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from lucebox.serve.body_route import body_router
from lucebox.serve.delivery import EVENTS, KEEP_ALIVE, STREAM_HEADERS, sse
from lucebox.serve.errors import ApiError, openai_error
from lucebox.serve.protocols.openapi import ERRORS, documented
from lucebox.serve.protocols.responses_replay import events_of, numbered, opening_events
from lucebox.serve.server import Server, owner_of, server_of

__all__ = ["router"]

router = body_router()


@router.get("/v1/responses/{response_id}", **documented("Fetches a stored response.", ERRORS))
async def retrieve(
    response_id: str,
    request: Request,
    stream: bool | None = None,
    starting_after: Annotated[int | None, Query(ge=0)] = None,
) -> Response:
    """With stream, its events: those after a number if starting_after is set. A running response is waited for."""
    document = server_of(request).responses.get(response_id, owner_of(request)).document
    if not stream:
        return JSONResponse(document)
    events = _events(server_of(request), owner_of(request), document, -1 if starting_after is None else starting_after)
    return StreamingResponse(events, media_type=EVENTS, headers=STREAM_HEADERS)


async def _events(server: Server, owner: str, document: dict[str, Any], starting_after: int) -> AsyncIterator[bytes]:
    opening = [*opening_events(document)]
    yield numbered(opening, 0, starting_after)
    if task := server.background.get(document["id"]):
        while not (await asyncio.wait([task], timeout=server.settings.heartbeat))[0]:
            yield KEEP_ALIVE
    try:
        ended = server.responses.get(document["id"], owner).document
        yield numbered(events_of(ended), len(opening), starting_after)
    except ApiError as error:  # it has been deleted in the meantime
        yield sse(openai_error(error))


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
