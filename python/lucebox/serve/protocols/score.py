"""/v1/score: how likely each of some labels is as the next text of one prompt."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from lucebox.chat.conversation import Conversation
from lucebox.generation.answer import Answer
from lucebox.generation.labels import MAX_LABELS
from lucebox.generation.request import GenerationRequest
from lucebox.serve.body_route import body_router
from lucebox.serve.errors import ApiError, openai_body
from lucebox.serve.protocols.body import Body, Ignored, Many, Name
from lucebox.serve.protocols.openai_chat import Message, messages_of
from lucebox.serve.protocols.openai_common import timings, usage
from lucebox.serve.protocols.openapi import ERRORS, documented
from lucebox.serve.running_model import RunningModel
from lucebox.serve.server import server_of

__all__ = ["ScoreRequest", "router"]


class ScoreRequest(Body):
    """Labels to compare after a prompt or a conversation."""

    model: Name | None = None
    prompt: str | Many[int] | None = Field(None, description="Text or tokens.")
    messages: Many[Message] | None = Field(None, min_length=1, description="A conversation, in place of a prompt.")
    labels: Many[str | Many[int]] = Field(
        min_length=1, max_length=MAX_LABELS, description="Texts or tokens, each tokenized alone."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Further variables of the chat template.")
    user: Ignored = None


def requests_of(running: RunningModel, body: ScoreRequest, endpoint: str) -> list[GenerationRequest]:
    if (body.prompt is None) == (body.messages is None):
        raise ApiError("invalid", "give either prompt or messages", "prompt")
    if body.messages is None and body.chat_template_kwargs is not None:
        raise ApiError("invalid", "chat_template_kwargs needs messages", "chat_template_kwargs")
    prompt: Conversation | str | list[int] = body.prompt or ""
    if body.messages is not None:
        messages = messages_of(body.messages)
        prompt = Conversation(messages, template_vars=dict(body.chat_template_kwargs or {}))
    return [running.model.score(prompt, body.labels, endpoint)]


def document(running: RunningModel, model: str, answers: list[Answer]) -> dict[str, Any]:
    (answer,) = answers
    assert answer.labels is not None and answer.finished is not None
    scores = answer.labels.scores(running.model.loaded.detokenize)
    data = [
        {
            "object": "score",
            "index": i,
            "label": score.text,
            "tokens": score.ids,
            "logprob": score.logprob,
            "probability": score.probability,
        }
        for i, score in enumerate(scores)
    ]
    finished = [answer.finished]
    return {
        "object": "list",
        "data": data,
        "model": model,
        "usage": usage(finished, 1),
        "timings": timings(answer.finished),
    }


router = body_router()


@router.post("/v1/score", **documented("Log probabilities of labels after one prompt.", ERRORS))
async def score(body: ScoreRequest, request: Request) -> Response:
    server = server_of(request)
    running, model = await server.use(request, body.model)
    requests = await server.in_thread(request, lambda: requests_of(running, body, request.url.path))
    return server.document(
        running, requests, lambda answers: document(running, model, answers), openai_body, body.ignored()
    )
