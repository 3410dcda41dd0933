"""What the OpenAPI document says of routes that FastAPI cannot see for itself."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

__all__ = ["ANTHROPIC_ERRORS", "ERRORS", "documented"]


class OpenAIErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    error: OpenAIErrorDetail


class AnthropicErrorDetail(BaseModel):
    type: str
    message: str


class AnthropicError(BaseModel):
    type: str
    error: AnthropicErrorDetail


REFUSALS = {
    400: "A field is unknown, missing or wrong, or the prompt is too long.",
    401: "The API key is missing or wrong.",
    403: "The server was called by a name that is not its own.",
    404: "There is no such thing.",
    408: "The body did not arrive in time, or the answer was not ready in time.",
    413: "The body is too large.",
    415: "The body is not JSON.",
}


def _errors(model: type[BaseModel], overloaded: int) -> dict[int | str, dict[str, Any]]:
    texts = {**REFUSALS, overloaded: "The queue is full; Retry-After says when to come again.", 500: "A fault in here."}
    return {status: {"model": model, "description": text} for status, text in texts.items()}


ERRORS = _errors(OpenAIError, 503)
ANTHROPIC_ERRORS = _errors(AnthropicError, 529)


def documented(summary: str, errors: dict[int | str, dict[str, Any]], *, streams: bool = True) -> dict[str, Any]:
    """Arguments of a route whose answer is a JSON document, or server-sent events."""
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if streams:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    success = {"description": summary, "content": content}
    return {"summary": summary, "response_model": None, "responses": {**errors, 200: success}}
