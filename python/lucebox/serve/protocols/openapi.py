"""OpenAPI descriptions of routes that FastAPI cannot derive."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

__all__ = ["ANTHROPIC_ERRORS", "ERRORS", "LLAMA_CPP_ERRORS", "OLLAMA_ERRORS", "documented"]


class OpenAIErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    error: OpenAIErrorDetail


class OllamaError(BaseModel):
    error: str


class LlamaCppErrorDetail(BaseModel):
    code: int
    message: str
    type: str


class LlamaCppError(BaseModel):
    error: LlamaCppErrorDetail


class AnthropicErrorDetail(BaseModel):
    type: str
    message: str
    details: dict[str, Any] | None = None


class AnthropicError(BaseModel):
    type: str
    error: AnthropicErrorDetail


ERROR_DESCRIPTIONS = {
    400: "A field is unknown, missing or invalid, or the prompt is too long.",
    401: "The API key is missing or wrong.",
    403: "The Host header does not name this server, or the page is of another site.",
    404: "The resource does not exist.",
    408: "The body did not arrive in time, or the answer did not finish in time.",
    409: "The model is in use.",
    413: "The body is too large.",
    415: "The body is not JSON.",
}

# One server-sent event: before OpenAPI 3.2 the schema of a stream describes each of its events.
EVENT = {
    "type": "object",
    "required": ["data"],
    "properties": {"data": {"type": "string"}, "event": {"type": "string"}},
}


def _errors(model: type[BaseModel], overloaded: int) -> dict[int | str, dict[str, Any]]:
    texts = {
        **ERROR_DESCRIPTIONS,
        overloaded: "The queue is full; Retry-After says when to retry.",
        500: "A fault in the server.",
    }
    return {status: {"model": model, "description": text} for status, text in texts.items()}


ERRORS = _errors(OpenAIError, 503)
ANTHROPIC_ERRORS = _errors(AnthropicError, 529)
OLLAMA_ERRORS = _errors(OllamaError, 503)
LLAMA_CPP_ERRORS = _errors(LlamaCppError, 503)


def documented(
    summary: str, errors: dict[int | str, dict[str, Any]], *, streams: bool = True, lines: bool = False
) -> dict[str, Any]:
    """Arguments for a route decorator whose response is a JSON document or, if streaming, server-sent events or lines
    of JSON."""
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if streams:
        content |= {"application/x-ndjson": {}} if lines else {"text/event-stream": {"schema": EVENT}}
    success = {"description": summary, "content": content}
    return {"summary": summary, "response_model": None, "responses": {**errors, 200: success}}
