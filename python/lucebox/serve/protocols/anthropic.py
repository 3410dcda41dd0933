"""Anthropic's messages: the request's schema, its conversation, and the routes /v1/messages and .../count_tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lucebox.chat.conversation import AnswerFormat, Conversation
from lucebox.chat.rendering import Message, with_text
from lucebox.chat.thinking import ThinkingRequest
from lucebox.chat.tools import Tool, ToolChoice
from lucebox.generation.request import GenerationRequest
from lucebox.images import ImageSource
from lucebox.serve.body_route import body_router
from lucebox.serve.errors import ApiError, anthropic_body
from lucebox.serve.model import Limits
from lucebox.serve.protocols.anthropic_stream import MessageWriter
from lucebox.serve.protocols.body import (
    Body,
    CacheHint,
    Carried,
    Ignored,
    Many,
    Name,
    ResultPart,
    Sampled,
    Stops,
    image_at,
    image_from_base64,
    sampling_of,
)
from lucebox.serve.protocols.compression import Compressible, compression_of, wants_spans
from lucebox.serve.protocols.encoded_reasoning import decode_reasoning
from lucebox.serve.protocols.openapi import ANTHROPIC_ERRORS, documented
from lucebox.serve.protocols.seams import joined
from lucebox.serve.server import ignored_header, server_of

__all__ = ["CountRequest", "MessagesRequest", "conversation_of", "router"]

# Claude Code prepends this line to its system prompt. It changes with every request, which would defeat prefix reuse.
BILLING_HEADER = "x-anthropic-billing-header:"


class TextBlock(Carried):
    type: Literal["text"]
    text: str
    cache_control: CacheHint = None


class ImageData(Carried):
    type: Literal["base64", "url"]
    media_type: str | None = None
    data: str | None = Field(None, description="Base64 of a PNG, JPEG or WebP file.")
    url: str | None = Field(None, description="An https URL; fetched with --allow-fetch.")

    @model_validator(mode="after")
    def _has_image(self) -> ImageData:
        name = "url" if self.type == "url" else "data"
        if getattr(self, name) is None:
            raise ValueError(f"{name} is missing")
        return self

    def image(self, where: str) -> ImageSource:
        return image_at(str(self.url), where) if self.type == "url" else image_from_base64(str(self.data), where)


class ImageBlock(Carried):
    type: Literal["image"]
    source: ImageData
    cache_control: CacheHint = None


class ThinkingBlock(Carried):
    type: Literal["thinking"]
    thinking: str
    signature: str | None = None
    cache_control: CacheHint = None


class RedactedThinkingBlock(Carried):
    type: Literal["redacted_thinking"]


class ToolUseBlock(Carried):
    type: Literal["tool_use"]
    id: str
    name: str = Field(min_length=1, max_length=256)
    input: dict[str, Any] | str = Field(description="An object; the text of a call that broke off is accepted too.")
    cache_control: CacheHint = None


class ToolResultBlock(Carried):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Many[TextBlock | ResultPart] | None = None
    is_error: bool | None = None
    cache_control: CacheHint = None


Block = Annotated[
    TextBlock | ImageBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock,
    Field(discriminator="type"),
]


class InputMessage(Carried):
    role: Literal["user", "assistant", "system"]
    content: str | Many[Block]


class ToolDefinition(Body):
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: Ignored = None
    defer_loading: Ignored = None
    eager_input_streaming: Ignored = None
    input_examples: Ignored = None
    allowed_callers: Ignored = None


class Choice(Body):
    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Body):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1)
    display: str | None = Field(None, description='"omitted" leaves the reasoning text out of the answer.')


class OutputFormat(Body):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class CountRequest(Body):
    """Anthropic's token counting."""

    model: Name | None = None
    messages: Many[InputMessage] = Field(min_length=1)
    system: str | Many[TextBlock] | None = None
    tools: Many[ToolDefinition] | None = None
    tool_choice: Choice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    thread: Any = Field(None, description="Refused: the server keeps no conversations.")
    metadata: Ignored = None
    context_management: Ignored = None
    cache_control: Ignored = None
    service_tier: Ignored = None
    inference_geo: Ignored = None
    speed: Ignored = None
    safeguards: Ignored = None
    diagnostics: Ignored = None


class MessagesRequest(CountRequest, Sampled, Compressible):
    """Anthropic's messages."""

    max_tokens: int = Field(ge=1)
    stream: bool | None = None
    stop_sequences: Stops | None = None


def conversation_of(body: CountRequest) -> Conversation:
    """The conversation of a request.

    Raises:
        ApiError: the request is for a thread, no message has text, or a block is in a message of another role.
    """
    if body.thread is not None:  # on this error code, the SDKs' tool runners fall back to whole conversations
        reason = "threads are not supported: send the whole conversation without it"
        details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
        raise ApiError("invalid", reason, "thread", details=details)
    messages: list[Message] = []
    if system := _system_text(body.system):
        messages.append({"role": "system", "content": system})
    for i, message in enumerate(body.messages):
        _add(messages, message, f"messages.{i}")
    if not messages:
        raise ApiError("invalid", "no message contains text", "messages")
    return Conversation(
        messages=messages,
        tools=[_tool(tool) for tool in body.tools or []],
        tool_choice=_tool_choice(body.tool_choice),
        thinking=_thinking(body),
        answer_format=_format(body),
    )


def _system_text(system: str | Sequence[TextBlock] | None) -> str:
    blocks = [system] if isinstance(system, str) else [block.text for block in system or []]
    return "\n\n".join(text for text in blocks if text and not text.startswith(BILLING_HEADER))


def _add(messages: list[Message], message: InputMessage, where: str) -> None:
    """Adds a message of blocks as template messages; each tool result becomes a separate message."""
    if message.role != "user" and any(isinstance(block, ImageBlock) for block in message.content):
        reason = f"images are not allowed in a message of the role {message.role}"
        raise ApiError("invalid", reason, f"{where}.content")
    if message.role == "assistant" and not isinstance(message.content, str):
        messages.append(_assistant(message.content))
        return
    blocks = [message.content] if isinstance(message.content, str) else message.content
    text = _Texts()
    for i, block in enumerate(blocks):
        if isinstance(block, str):
            text.add(block)
        elif isinstance(block, TextBlock):
            text.add(block.text)
        elif isinstance(block, ImageBlock):
            text.add_image(block.source.image(f"{where}.content.{i}"))
        elif isinstance(block, ToolResultBlock):
            is_open = bool(messages) and "tool_calls" in messages[-1]  # nothing may come between a call and its result
            if not text.is_empty and not is_open:
                _add_text(messages, message.role, text)
                text = _Texts()
            result = _result(block, f"{where}.content.{i}")
            messages.append({"role": "tool", "tool_call_id": block.tool_use_id, **result.content})
        else:
            raise ApiError(
                "invalid", f"a block of type {block.type!r} is not allowed in a {message.role} message", "messages"
            )
    if not text.is_empty:
        _add_text(messages, message.role, text)


class _Texts:
    """Texts of blocks, one a line, and the images between them, which are no lines of their own."""

    def __init__(self) -> None:
        self._text: str | None = None
        self._after_image = False
        self._images: list[ImageSource] = []

    def add(self, text: str) -> None:
        before = "" if self._text is None else self._text if self._after_image else self._text + "\n"
        self._text, self._after_image = before + text, False

    def add_image(self, image: ImageSource) -> None:
        self._text, self._after_image = (self._text or "") + image.marker, True
        self._images.append(image)

    @property
    def is_empty(self) -> bool:
        return self._text is None

    @property
    def content(self) -> dict[str, Any]:
        """Of a message: its text and images."""
        return {"content": self._text or "", **({"images": self._images} if self._images else {})}


def _add_text(messages: list[Message], role: str, text: _Texts) -> None:
    """Adds text of a turn. Consecutive user messages are one turn, so user text after a tool result joins it, even if
    a system message is between them."""
    at = next((i for i in reversed(range(len(messages))) if messages[i]["role"] != "system"), None)
    if role == "user" and at is not None and messages[at]["role"] == "tool":
        content = text.content
        messages[at] = with_text(messages[at], content["content"])
        if images := [*messages[at].get("images", ()), *content.get("images", ())]:
            messages[at]["images"] = images
    else:
        messages.append({"role": role, **text.content})


def _assistant(blocks: Sequence[Block]) -> Message:
    texts, thoughts = [], []  # collected from adjacent blocks
    for _, run in groupby(blocks, type):
        adjacent = list(run)
        texts.append("".join(b.text for b in adjacent if isinstance(b, TextBlock)))
        thoughts.append("".join(_thought(b) for b in adjacent if isinstance(b, ThinkingBlock)))
    message: Message = {"role": "assistant", "content": joined(texts)}
    if reasoning := joined(thoughts):
        message["reasoning_content"] = reasoning
    calls = [b for b in blocks if isinstance(b, ToolUseBlock)]
    if calls:
        message["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": _arguments(c.input)}}
            for c in calls
        ]
    return message


def _thought(block: ThinkingBlock) -> str:
    return block.thinking or decode_reasoning(block.signature)


def _arguments(given: dict[str, Any] | str) -> str:
    return given if isinstance(given, str) else json.dumps(given)


def _result(block: ToolResultBlock, where: str) -> _Texts:
    result = _Texts()
    content = block.content or ""
    parts: Sequence[str | TextBlock | ResultPart] = [content] if isinstance(content, str) else content
    for i, part in enumerate(parts):
        image = part.image(f"{where}.content.{i}") if isinstance(part, ResultPart) else None
        text = part if isinstance(part, str) else part.text
        is_first_error = i == 0 and block.is_error and not text.lower().startswith("error")
        if image is not None:
            result.add_image(image)
        else:
            result.add(f"Error: {text}" if is_first_error else text)
    return result


def _tool(tool: ToolDefinition) -> Tool:
    return Tool(tool.name, tool.description or "", tool.input_schema, bool(tool.strict))


def _tool_choice(choice: Choice | None) -> ToolChoice:
    if choice is None:
        return ToolChoice()
    parallel = not choice.disable_parallel_tool_use
    if choice.type == "tool":
        if choice.name is None:
            raise ApiError("invalid", "a tool_choice of type 'tool' needs a name", "tool_choice.name")
        return ToolChoice("required", (choice.name,), parallel)
    if choice.type == "any":
        return ToolChoice("required", (), parallel)
    return ToolChoice("none" if choice.type == "none" else "auto", (), parallel)


def _thinking(body: CountRequest) -> ThinkingRequest:
    effort = body.output_config.effort if body.output_config else None
    if body.thinking is None:
        return ThinkingRequest("default", effort)
    if body.thinking.type == "disabled":
        return ThinkingRequest("off")
    if body.thinking.type == "adaptive":
        return ThinkingRequest("adaptive", effort)
    return ThinkingRequest("on", effort, body.thinking.budget_tokens)


def _format(body: CountRequest) -> AnswerFormat | None:
    output_format = body.output_format or (body.output_config and body.output_config.format)
    return AnswerFormat("json_schema", output_format.schema_, is_strict=True) if output_format else None


router = body_router()


@router.post("/v1/messages", **documented("Answers a conversation.", ANTHROPIC_ERRORS))
async def messages(body: MessagesRequest, request: Request) -> Response:
    server = server_of(request)
    running, model = await server.use(request, body.model)
    sampling, limits = sampling_of(body), Limits(body.max_tokens, tuple(body.stop_sequences or ()))

    def make() -> tuple[list[GenerationRequest], list[str]]:
        conversation = conversation_of(body)
        conversation.compression = compression_of(body)
        return running.model.chat(conversation, sampling, limits, "/v1/messages"), body.ignored()

    requests, ignored = await server.in_thread(request, make)
    omits_thinking = body.thinking is not None and body.thinking.display == "omitted"
    writer = MessageWriter(model, omits_thinking=omits_thinking, with_spans=wants_spans(body))
    if body.stream:
        return server.stream(running, requests, writer, ignored)
    return server.document(running, requests, writer.document, anthropic_body, ignored)


@router.post("/v1/messages/count_tokens", **documented("Counts a prompt's tokens.", ANTHROPIC_ERRORS, streams=False))
async def count_tokens(body: CountRequest, request: Request) -> Response:
    server = server_of(request)
    running, _ = await server.use(request, body.model)

    def count() -> tuple[int, list[str]]:
        return running.model.count(conversation_of(body)), body.ignored()

    n, ignored = await server.in_thread(request, count)
    return JSONResponse({"input_tokens": n}, headers=ignored_header(ignored))
