"""Request bodies of Ollama's API, and their conversion to conversations, sampling and formats."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field

from lucebox.chat.conversation import AnswerFormat, Conversation
from lucebox.chat.rendering import Message
from lucebox.chat.thinking import ThinkingRequest
from lucebox.chat.tools import Tool
from lucebox.generation.embedding import Pooling
from lucebox.serve.errors import ApiError
from lucebox.serve.model import Limits
from lucebox.serve.protocols.body import (
    Body,
    Carried,
    Ignored,
    Many,
    Name,
    Sampled,
    Stop,
    Stops,
    image_from_base64,
    sampling_of,
    stops_of,
)

__all__ = [
    "ChatRequest",
    "EmbedRequest",
    "EmbeddingsRequest",
    "GenerateRequest",
    "ShowRequest",
    "check_generate",
    "conversation_of",
    "format_of",
    "limits_of",
    "name_of",
    "options_of",
    "prompt_of",
]

_NAMES = {  # option -> Sampling field
    "min_p": "min_p",
    "typical_p": "typical_p",
    "repeat_penalty": "repetition_penalty",
    "repeat_last_n": "penalty_window",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
}
Think = bool | Literal["low", "medium", "high", "max"]


class Options(Sampled):
    """Options of an answer. Those of loading a model are ignored: it is loaded."""

    num_predict: int | None = Field(None, ge=-2, le=2**31 - 1, description="Negative: as much as the context holds.")
    stop: Stop | Stops | None = None
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    min_p: float | None = Field(None, ge=0, le=1)
    typical_p: float | None = Field(None, gt=0, le=1)
    repeat_penalty: float | None = Field(None, gt=0, le=100)
    repeat_last_n: int | None = Field(None, ge=-1, le=2**31 - 1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    mirostat: Literal[0] | None = None
    mirostat_tau: Ignored = None
    mirostat_eta: Ignored = None
    tfs_z: Ignored = None
    penalize_newline: Ignored = None
    num_keep: Ignored = None
    num_ctx: Ignored = None
    num_batch: Ignored = None
    num_gpu: Ignored = None
    num_thread: Ignored = None
    main_gpu: Ignored = None
    numa: Ignored = None
    low_vram: Ignored = None
    f16_kv: Ignored = None
    logits_all: Ignored = None
    vocab_only: Ignored = None
    use_mmap: Ignored = None
    use_mlock: Ignored = None
    embedding_only: Ignored = None


NO_OPTIONS = Options.model_validate({})


class _Request(Body):
    model: Name | None = None
    options: Options | None = None
    keep_alive: Ignored = None
    truncate: Ignored = None
    shift: Ignored = None

    def ignored(self) -> list[str]:
        options = self.options.ignored() if self.options else []
        return [*super().ignored(), *(f"options.{name}" for name in options)]


class _Answered(_Request):
    stream: bool | None = Field(None, description="False: one document. Otherwise lines of JSON.")
    format: Literal["", "json"] | dict[str, Any] | None = Field(None, description='"json" or a JSON schema.')
    think: Think | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)


class CalledFunction(Carried):
    name: str = Field(min_length=1, max_length=256)
    arguments: dict[str, Any] | str = Field(
        default_factory=dict, description="An object; the text of a call that broke off is accepted too."
    )


class ToolCall(Carried):
    function: CalledFunction
    id: str | None = None
    type: Literal["function"] | None = None


class ChatMessage(Carried):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = Field(None, description="The turn's reasoning, for templates that use it.")
    tool_calls: Many[ToolCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    images: Many[str] | None = Field(None, description="Base64 of PNG, JPEG or WebP files.")


class Function(Body):
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(Body):
    type: Literal["function"] | None = None
    function: Function


class ChatRequest(_Answered):
    """Ollama's chat. Without messages it asks whether the model is loaded."""

    messages: Many[ChatMessage] | None = None
    tools: Many[ToolDefinition] | None = None


class GenerateRequest(_Answered):
    """Ollama's completion of a prompt: of a conversation of one turn, or of raw text."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = Field(None, description="Continue the prompt as it is, without the chat template.")
    suffix: Literal[""] | None = None
    template: Literal[""] | None = None
    context: Many[Any] | None = None
    images: Many[str] | None = Field(None, description="Base64 of PNG, JPEG or WebP files.")


class EmbedRequest(_Request):
    """Ollama's embeddings of texts."""

    input: str | Many[str]
    dimensions: int | None = Field(None, ge=1)
    pooling: Pooling | None = Field(None, description="lucebox's own field: a pooling instead of the model's.")


class EmbeddingsRequest(_Request):
    """Ollama's older form for one text."""

    prompt: str
    pooling: Pooling | None = Field(None, description="As in EmbedRequest.")


class ShowRequest(Body):
    model: Name | None = None
    name: Name | None = Field(None, description="Another name of model.")
    verbose: Ignored = None


def name_of(requested: str | None) -> str | None:
    """The requested model. Ollama's clients add the tag `latest` to a name without one."""
    return None if requested is None else requested.removesuffix(":latest")


def options_of(body: _Answered) -> dict[str, Any]:
    """The fields of `Sampling` that were sent."""
    options = body.options or NO_OPTIONS
    sampling = sampling_of(options)
    sampling |= {field: value for name, field in _NAMES.items() if (value := getattr(options, name)) is not None}
    if body.logprobs:
        sampling["logprobs"] = body.top_logprobs or 0
    elif body.top_logprobs:
        raise ApiError("invalid", "top_logprobs needs logprobs", "top_logprobs")
    return sampling


def limits_of(body: _Answered) -> Limits:
    options = body.options or NO_OPTIONS
    n = options.num_predict
    if n == 0:
        raise ApiError("invalid", "num_predict is 0, which generates nothing", "options.num_predict")
    return Limits(n if n is not None and n > 0 else None, stops_of(options.stop))


def format_of(body: _Answered) -> AnswerFormat | None:
    if isinstance(body.format, dict):
        return AnswerFormat("json_schema", body.format)
    return AnswerFormat("json_object") if body.format == "json" else None


def conversation_of(body: ChatRequest) -> Conversation:
    """The conversation of a chat.

    Raises:
        ApiError: an image is damaged, or in a message of the system or the assistant.
    """
    return Conversation(
        messages=[_message(message, f"messages.{i}") for i, message in enumerate(body.messages or [])],
        tools=[_tool(tool.function) for tool in body.tools or []],
        thinking=_thinking(body.think),
        answer_format=format_of(body),
    )


def check_generate(body: GenerateRequest) -> None:
    """Refuses unsupported fields of a prompt.

    Raises:
        ApiError: there are tokens of an earlier conversation, or a system text or images without a template.
    """
    _refuse(body.raw and body.images, "images", "raw text has no images")
    _refuse(body.context, "context", "context is not supported: send the conversation to /api/chat")
    _refuse(body.raw and body.system, "system", "raw text has no system message")


def prompt_of(body: GenerateRequest) -> Conversation:
    messages: list[Message] = [{"role": "system", "content": body.system}] if body.system else []
    messages.append(_with_images({"role": "user", "content": body.prompt or ""}, body.images, "images"))
    return Conversation(messages, thinking=_thinking(body.think), answer_format=format_of(body))


def _refuse(given: object, field: str, reason: str) -> None:
    if given:
        raise ApiError("invalid", reason, field)


def _thinking(think: Think | None) -> ThinkingRequest:
    if isinstance(think, str):
        return ThinkingRequest("on", think)
    return ThinkingRequest("default" if think is None else "on" if think else "off")


def _with_images(message: Message, images: list[str] | None, where: str) -> Message:
    """The message with its images before its text, as Ollama orders them."""
    if not images:
        return message
    sources = [image_from_base64(data, f"{where}.{i}") for i, data in enumerate(images)]
    markers = "".join(source.marker for source in sources)
    return {**message, "content": markers + message["content"], "images": sources}


def _message(message: ChatMessage, where: str) -> Message:
    if message.role in ("system", "assistant"):
        _refuse(message.images, f"{where}.images", f"images are not allowed in a message of the role {message.role}")
    result = _with_images({"role": message.role, "content": message.content or ""}, message.images, f"{where}.images")
    if message.thinking is not None:
        result["reasoning_content"] = message.thinking
    if message.tool_calls:
        result["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.role == "tool":
        result |= {"tool_call_id": message.tool_call_id, "name": message.tool_name}
    return result


def _call(call: ToolCall) -> dict[str, Any]:
    given = call.function.arguments
    arguments = given if isinstance(given, str) else json.dumps(given)
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def _tool(function: Function) -> Tool:
    parameters = function.parameters or {"type": "object", "properties": {}}
    return Tool(function.name, function.description or "", parameters, bool(function.strict))
