"""Errors of requests: one exception type, formatted for each protocol.

Clients act on these texts. Claude Code compacts its conversation on "prompt is too long: A tokens > B maximum",
clients of OpenAI's APIs on the code context_length_exceeded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from lucebox.errors import CancelledError, InvalidRequestError, LuceboxError, UnsupportedError

__all__ = [
    "ApiError",
    "Kind",
    "anthropic_body",
    "anthropic_error",
    "body_of",
    "from_lucebox",
    "llama_cpp_body",
    "llama_cpp_error",
    "ollama_body",
    "ollama_error",
    "openai_body",
    "openai_error",
    "overloaded",
    "too_long",
]

Kind: TypeAlias = Literal[
    "invalid", "unauthorized", "forbidden", "not_found", "method", "timeout", "too_large", "too_long", "overloaded",
    "media_type", "internal", "cancelled", "unsupported", "conflict",
]  # fmt: skip


@dataclass(eq=False)
class ApiError(Exception):
    """A request that fails, with the reason."""

    kind: Kind
    message: str
    param: str | None = None
    """The invalid field."""
    code: str | None = None
    retry_after: int | None = None
    """Seconds until a retry makes sense."""
    counts: tuple[int, int] | None = None
    """Prompt tokens and the maximum, when the prompt is too long."""
    details: dict[str, Any] | None = None
    """Machine-readable details for Anthropic's SDKs: a code and the fields it concerns."""

    def __str__(self) -> str:
        return self.message

    @property
    def status(self) -> int:
        return _STATUS[self.kind]


_STATUS: dict[Kind, int] = {
    "invalid": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "method": 405,
    "timeout": 408,
    "conflict": 409,
    "too_large": 413,
    "media_type": 415,
    "too_long": 400,
    "overloaded": 503,
    "internal": 500,
    "cancelled": 499,
    "unsupported": 501,
}

_OPENAI_TYPES: dict[Kind, tuple[str, str | None]] = {  # type and code
    "unauthorized": ("invalid_request_error", "invalid_api_key"),
    "too_long": ("invalid_request_error", "context_length_exceeded"),
    "overloaded": ("server_error", "server_overloaded"),
    "timeout": ("server_error", "timeout"),
    "internal": ("server_error", None),
    "cancelled": ("server_error", "cancelled"),
    "unsupported": ("invalid_request_error", "unsupported"),
}

_ANTHROPIC_TYPES: dict[Kind, str] = {
    "unauthorized": "authentication_error",
    "forbidden": "permission_error",
    "not_found": "not_found_error",
    "too_large": "request_too_large",
    "overloaded": "overloaded_error",
    "timeout": "timeout_error",
    "internal": "api_error",
    "cancelled": "api_error",
}

_LLAMA_CPP_TYPES: dict[Kind, str] = {
    "unauthorized": "authentication_error",
    "forbidden": "permission_error",
    "not_found": "not_found_error",
    "too_long": "exceed_context_size_error",
    "overloaded": "unavailable_error",
    "unsupported": "not_supported_error",
    "timeout": "server_error",
    "internal": "server_error",
    "cancelled": "server_error",
}
_LLAMA_CPP_PATHS = frozenset({"/completion", "/completions", "/rerank", "/v1/rerank", "/reranking", "/v1/reranking"})


def openai_error(error: ApiError) -> dict[str, Any]:
    """The JSON of an error response or error event in OpenAI's APIs."""
    kind, code = _OPENAI_TYPES.get(error.kind, ("invalid_request_error", None))
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code or code}}


def anthropic_error(error: ApiError) -> dict[str, Any]:
    """The JSON of an error response or error event in Anthropic's API."""
    message = _with_param(error)
    if error.kind == "too_long" and error.counts is not None:
        message = f"prompt is too long: {error.counts[0]} tokens > {error.counts[1]} maximum"
    fault: dict[str, Any] = {"type": _ANTHROPIC_TYPES.get(error.kind, "invalid_request_error"), "message": message}
    return {"type": "error", "error": fault if error.details is None else {**fault, "details": error.details}}


def ollama_error(error: ApiError) -> dict[str, Any]:
    """The JSON of an error response, or of a stream's last line, in Ollama's API."""
    return {"error": _with_param(error)}


def llama_cpp_error(error: ApiError) -> dict[str, Any]:
    """The JSON of an error response or error event in llama.cpp's own API."""
    kind = _LLAMA_CPP_TYPES.get(error.kind, "invalid_request_error")
    detail: dict[str, Any] = {"code": error.status, "message": _with_param(error), "type": kind}
    if error.counts is not None:
        detail |= {"n_prompt_tokens": error.counts[0], "n_ctx": error.counts[1]}
    return {"error": detail}


def _with_param(error: ApiError) -> str:
    """The message, prefixed with the field it concerns."""
    if error.param is None or error.param in error.message or error.kind == "too_long":
        return error.message
    return f"{error.param}: {error.message}"


def anthropic_status(error: ApiError) -> int:
    """The HTTP status; Anthropic's clients back off and retry on 529."""
    return 529 if error.kind == "overloaded" else error.status


def openai_body(error: ApiError) -> tuple[int, dict[str, Any]]:
    return error.status, openai_error(error)


def anthropic_body(error: ApiError) -> tuple[int, dict[str, Any]]:
    return anthropic_status(error), anthropic_error(error)


def ollama_body(error: ApiError) -> tuple[int, dict[str, Any]]:
    return error.status, ollama_error(error)


def llama_cpp_body(error: ApiError) -> tuple[int, dict[str, Any]]:
    return error.status, llama_cpp_error(error)


def body_of(path: str, error: ApiError) -> tuple[int, dict[str, Any]]:
    """The HTTP status and body of an error, in the protocol of a path."""
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return anthropic_body(error)
    if path.startswith("/api/"):
        return ollama_body(error)
    return llama_cpp_body(error) if path in _LLAMA_CPP_PATHS else openai_body(error)


def too_long(n_tokens: int, context: int) -> ApiError:
    """The error of a prompt that does not fit in the context."""
    return ApiError(
        "too_long",
        f"This model's maximum context length is {context} tokens. However, your messages resulted in {n_tokens} "
        "tokens. Please reduce the length of the messages.",
        param="messages",
        counts=(n_tokens, context),
    )


def overloaded(message: str, retry_after: int) -> ApiError:
    return ApiError("overloaded", message, retry_after=retry_after)


def from_lucebox(error: LuceboxError) -> ApiError:
    """The ApiError of an exception from the engine or the text layer."""
    if isinstance(error, InvalidRequestError | UnsupportedError):
        return ApiError("invalid", str(error))
    if isinstance(error, CancelledError):
        return ApiError("cancelled", str(error))
    return ApiError("internal", str(error))
