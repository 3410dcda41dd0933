"""Routes on the length of a conversation: /v1/responses/input_tokens counts it, /v1/responses/compact shortens it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lucebox.chat.conversation import Conversation
from lucebox.chat.tools import ToolChoice
from lucebox.generation.answer import Answer
from lucebox.generation.request import GenerationRequest
from lucebox.images.source import MARKER
from lucebox.serve.body_route import body_router
from lucebox.serve.errors import ApiError, openai_body
from lucebox.serve.model import Limits
from lucebox.serve.protocols.body import Ignored
from lucebox.serve.protocols.encoded_reasoning import encode_reasoning
from lucebox.serve.protocols.openai_responses import Prompted, conversation_of, ignored_of, with_stored
from lucebox.serve.protocols.openapi import ERRORS, documented
from lucebox.serve.protocols.responses_items import SUMMARY_HEAD
from lucebox.serve.protocols.responses_stream import usage_of
from lucebox.serve.protocols.seams import text_of
from lucebox.serve.server import ignored_header, owner_of, server_of

__all__ = ["router"]

MAX_SUMMARY = 4096  # tokens
INSTRUCTION = (
    "Summarize this conversation for an assistant that will continue it and sees only your summary and the user's "
    "messages. Keep goals and constraints, decisions, results of tools, names of files, code that matters, and what "
    "remains to be done. Write only the summary."
)


class CountRequest(Prompted):
    """OpenAI's counting of a response's input."""

    personality: Ignored = None


class CompactRequest(Prompted):
    """OpenAI's compaction of a conversation."""

    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    service_tier: Ignored = None


router = body_router()


@router.post("/v1/responses/input_tokens", **documented("Counts a prompt's tokens.", ERRORS, streams=False))
async def count(body: CountRequest, request: Request) -> Response:
    server = server_of(request)
    running, _ = await server.use(request, body.model)
    owner = owner_of(request)

    def make() -> tuple[int, list[str]]:
        return running.model.count(conversation_of(*with_stored(body, server, owner))), ignored_of(body)

    n, ignored = await server.in_thread(request, make)
    return JSONResponse({"object": "response.input_tokens", "input_tokens": n}, headers=ignored_header(ignored))


@router.post("/v1/responses/compact", **documented("Summarizes a conversation.", ERRORS, streams=False))
async def compact(body: CompactRequest, request: Request) -> Response:
    """The output is the input of a later request: the user's messages, and the summary of all else."""
    server = server_of(request)
    running, _ = await server.use(request, body.model)
    owner = owner_of(request)

    def make() -> tuple[list[GenerationRequest], list[dict[str, Any]], list[str]]:
        conversation = conversation_of(*with_stored(body, server, owner))
        kept = _user_messages(conversation)
        conversation.messages.append({"role": "user", "content": INSTRUCTION})
        conversation.tool_choice = ToolChoice("none")
        conversation.answer_format = None
        made = running.model.chat(conversation, {}, Limits(MAX_SUMMARY), "/v1/responses/compact")
        return made, kept, ignored_of(body)

    requests, kept, ignored = await server.in_thread(request, make)
    return server.document(running, requests, lambda answers: _document(kept, answers), openai_body, ignored)


def _user_messages(conversation: Conversation) -> list[dict[str, Any]]:
    """The user's messages as items, excluding summaries of earlier compactions."""
    texts = [
        MARKER.sub("[image]", message["content"]) if "images" in message else message["content"]
        for message in conversation.messages
        if message["role"] == "user"
    ]
    return [
        {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": text}],
            "status": "completed",
        }
        for text in texts
        if not text.startswith(SUMMARY_HEAD)
    ]


def _document(kept: list[dict[str, Any]], answers: Sequence[Answer]) -> dict[str, Any]:
    (answer,) = answers
    assert answer.finished is not None
    if not (summary := text_of(answer)):
        raise ApiError("internal", "the model wrote no summary")
    item = {"id": f"cmp_{secrets.token_hex(12)}", "type": "compaction", "encrypted_content": encode_reasoning(summary)}
    return {
        "id": f"resp_{secrets.token_hex(24)}",
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [*kept, item],
        "usage": usage_of(answer.finished),
    }
