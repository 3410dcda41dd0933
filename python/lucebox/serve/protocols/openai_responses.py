"""OpenAI's responses: the request's schema, its conversation, and POST /v1/responses.

stored_responses.py has the routes of existing responses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lucebox.chat.conversation import AnswerFormat, Conversation
from lucebox.chat.rendering import Message
from lucebox.chat.thinking import ThinkingRequest
from lucebox.chat.tools import Tool, ToolChoice
from lucebox.generation.answer import Answer
from lucebox.generation.request import Started
from lucebox.serve.body_route import body_router
from lucebox.serve.delivery import Exchange, FailedStream
from lucebox.serve.errors import ApiError, openai_body
from lucebox.serve.model import Limits
from lucebox.serve.protocols.body import MAX_NAMED, Body, Ignored, Many, Name, Sampled, Texts, sampling_of, shown_name
from lucebox.serve.protocols.compression import Compressible, compression_of, wants_spans
from lucebox.serve.protocols.openai_common import LogprobWriter
from lucebox.serve.protocols.openapi import ERRORS, documented
from lucebox.serve.protocols.responses_items import InputItem, Origin, messages_of, resolved, stored_items
from lucebox.serve.protocols.responses_stream import ResponseWriter
from lucebox.serve.responses_store import ResponseStore, StoredResponse
from lucebox.serve.server import Server, ignored_header, owner_of, server_of

__all__ = ["Prompted", "ResponsesRequest", "conversation_of", "ignored_of", "router", "with_stored"]

INCLUDABLE = ("reasoning.encrypted_content", "message.output_text.logprobs")
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class FunctionTool(Body):
    type: Literal["function"]
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: Ignored = None


class Namespace(Body):
    type: Literal["namespace"]
    name: str
    description: str | None = None
    tools: Many[FunctionTool]


class HostedTool(Body):
    """A tool that OpenAI's servers run. Unavailable here, so the model never sees it."""

    model_config = Body.model_config | {"extra": "allow"}
    type: Literal["web_search", "web_search_preview", "local_shell", "image_generation", "tool_search"]


ToolItem = Annotated[FunctionTool | Namespace | HostedTool, Field(discriminator="type")]


class ChosenTool(Body):
    type: Literal["function"]
    name: str
    namespace: str | None = None


class AllowedTools(Body):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Many[ChosenTool]


class PlainFormat(Body):
    type: Literal["text"]


class JsonObjectFormat(Body):
    type: Literal["json_object"]


class JsonSchemaFormat(Body):
    type: Literal["json_schema"]
    name: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None
    description: str | None = None


class TextConfig(Body):
    format: Annotated[PlainFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")] | None = None
    verbosity: Ignored = None


class ReasoningConfig(Body):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed", "none"] | None = Field(
        None, description="Send the full reasoning as a summary."
    )
    generate_summary: Ignored = None
    context: Ignored = None


class Prompted(Body):
    """What a prompt is made of."""

    model: Name | None = None
    input: str | Many[InputItem] = Field(default_factory=list)
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Many[ToolItem] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    truncation: Literal["disabled"] | None = None


P = TypeVar("P", bound=Prompted)


class ResponsesRequest(Prompted, Sampled, Compressible):
    """OpenAI's responses."""

    input: str | Many[InputItem]
    stream: bool | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    top_logprobs: int | None = Field(None, ge=0, le=20)
    store: bool | None = Field(None, description="Keep the response in memory for a while; default true.")
    include: Annotated[list[Name], Field(max_length=64, fail_fast=True)] | None = Field(
        None, description=f"{' and '.join(INCLUDABLE)}; other values have no effect."
    )
    metadata: Texts | None = None
    background: bool | None = Field(None, description="Return at once; clients fetch the response later.")
    client_metadata: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    safety_identifier: Ignored = None
    service_tier: Ignored = None
    stream_options: Ignored = None
    user: Ignored = None


def conversation_of(body: Prompted, history: Sequence[Message]) -> Conversation:
    """The conversation of a request, after the messages of its previous response."""
    messages: list[Message] = [{"role": "system", "content": body.instructions}] if body.instructions else []
    messages += history
    if isinstance(body.input, str):
        messages.append({"role": "user", "content": body.input})
    else:
        messages += messages_of(body.input, shown_names(body))
    if not any(message["role"] != "system" for message in messages):
        raise ApiError("invalid", "the input has no message to answer", "input")
    if messages[-1]["role"] == "assistant" and any("tool_calls" in message for message in messages[-2:-1]):
        raise ApiError("invalid", "the input ends with a call that has no result", "input")
    return Conversation(
        messages=messages,
        tools=tools_of(body),
        tool_choice=_tool_choice(body),
        thinking=_thinking(body.reasoning),
        answer_format=_format(body.text),
        compression=compression_of(body) if isinstance(body, Compressible) else None,
    )


def functions_of(body: Prompted) -> list[tuple[FunctionTool, str | None]]:
    """All functions of a request, each with its namespace if it has one."""
    found: list[tuple[FunctionTool, str | None]] = []
    for tool in body.tools or []:
        if isinstance(tool, FunctionTool):
            found.append((tool, None))
        elif isinstance(tool, Namespace):
            found += [(function, tool.name) for function in tool.tools]
    return found


def shown_names(body: Prompted) -> dict[Origin, str]:
    """The name under which the model sees each function: the function's name. A function in a namespace gets the
    namespace as prefix if the name is not unique.

    Raises:
        ApiError: two functions of a namespace have the same name.
    """
    origins: list[Origin] = [(namespace, function.name) for function, namespace in functions_of(body)]
    counts = Counter(name for _, name in origins)
    shown = {(ns, name): name if ns is None or counts[name] == 1 else f"{ns}__{name}" for ns, name in origins}
    if len(set(shown.values())) < len(origins):
        name = Counter(shown.get(origin, "") for origin in origins).most_common(1)[0][0]
        raise ApiError("invalid", f"two tools have the name {name!r}", "tools")
    return shown


def tools_of(body: Prompted) -> list[Tool]:
    shown = shown_names(body)
    return [
        Tool(
            shown[namespace, tool.name],
            tool.description or "",
            tool.parameters or {"type": "object", "properties": {}},
            bool(tool.strict),
        )
        for tool, namespace in functions_of(body)
    ]


def _tool_choice(body: Prompted) -> ToolChoice:
    parallel = body.parallel_tool_calls is not False
    match body.tool_choice:
        case ChosenTool() as tool:
            return ToolChoice("required", _chosen([tool], body), parallel)
        case AllowedTools(mode=mode, tools=tools):
            return ToolChoice(mode, _chosen(tools, body), parallel)
        case None:
            return ToolChoice("auto", (), parallel)
        case mode:
            return ToolChoice(mode, (), parallel)


def _chosen(tools: Sequence[ChosenTool], body: Prompted) -> tuple[str, ...]:
    """The shown names of chosen tools; a name without a namespace selects all functions with that name."""
    found: list[str] = []
    for tool in tools:
        names = [
            shown
            for (namespace, name), shown in shown_names(body).items()
            if name == tool.name and tool.namespace in (None, namespace)
        ]
        found += names or [tool.name]
    return tuple(found)


def _thinking(reasoning: ReasoningConfig | None) -> ThinkingRequest:
    if reasoning is None or reasoning.effort is None:
        return ThinkingRequest()
    return ThinkingRequest("off") if reasoning.effort == "none" else ThinkingRequest("on", reasoning.effort)


def _format(text: TextConfig | None) -> AnswerFormat | None:
    match text and text.format:
        case JsonObjectFormat():
            return AnswerFormat("json_object")
        case JsonSchemaFormat(schema_=schema, strict=strict):
            return AnswerFormat("json_schema", schema, is_strict=bool(strict))
    return None


router = body_router()


@router.post("/v1/responses", **documented("Answers a conversation.", ERRORS))
async def create_response(body: ResponsesRequest, request: Request) -> Response:
    server = server_of(request)
    running, model = await server.use(request, body.model)
    if body.background and (body.stream or body.store is False):
        raise ApiError("invalid", "a background response must be stored and cannot be streamed", "background")
    owner = owner_of(request)
    sampling, logprobs = sampling_of(body), None
    if body.top_logprobs or "message.output_text.logprobs" in (body.include or []):
        sampling["logprobs"] = body.top_logprobs or 0
        logprobs = LogprobWriter(running.model.loaded.tokenizer)
    limits = Limits(body.max_output_tokens)

    def convert() -> tuple[Conversation, ResponseWriter, list[dict[str, Any]], list[str]]:
        full, previous = with_stored(body, server, owner)
        conversation = conversation_of(full, previous)
        origins = {shown: origin for origin, shown in shown_names(full).items()}
        sent = full.model_dump(by_alias=True, exclude_none=True, mode="json")
        items = stored_items(sent["input"], server.id_tag)
        # Stored without the instructions, which every request sets itself.
        history = conversation.messages[1:] if body.instructions else conversation.messages
        spans = wants_spans(body)
        writer = ResponseWriter(sent, model, origins, logprobs=logprobs, with_spans=spans, id_tag=server.id_tag)
        if body.store is not False:
            store = server.responses.update if body.background else server.responses.put
            writer.store = lambda document, turns: store(StoredResponse(document, [*history, *turns], items, owner))
        return conversation, writer, items, ignored_of(body)

    conversation, writer, items, ignored = await server.in_thread(request, convert)
    try:
        requests = await server.in_thread(
            request, lambda: running.model.chat(conversation, sampling, limits, "/v1/responses")
        )
    except ApiError as error:
        if body.stream and error.kind == "too_long":  # Codex reads this error only from the stream
            return FailedStream(writer, error)
        raise
    if body.background:
        pending = writer.pending(has_started=False)
        run = partial(_run_in_background, server.responses, writer, items, owner)
        server.in_background(writer.id, owner, running, requests, run)
        server.responses.put(StoredResponse(pending, [], items, owner))
        return JSONResponse(pending, headers=ignored_header(ignored))
    if body.stream:
        return server.stream(running, requests, writer, ignored, name=writer.id, owner=owner)
    return server.document(running, requests, writer.document, openai_body, ignored)


def ignored_of(body: Prompted) -> list[str]:
    """The ignored fields that were sent, tools that only OpenAI's servers run, and requested answer parts that do not
    exist here."""
    found = [*body.ignored(), *(f"tools.{tool.type}" for tool in body.tools or [] if isinstance(tool, HostedTool))]
    if isinstance(body, ResponsesRequest):
        found += [f"include.{shown_name(name)}" for name in body.include or [] if name not in INCLUDABLE]
    return sorted(set(found))[:MAX_NAMED]


def with_stored(body: P, server: Server, owner: str) -> tuple[P, list[Message]]:
    """The body with stored items in place of references, and the messages of its previous response.

    Raises:
        ApiError: one of these is not stored, or the items are too large.
    """
    store = server.responses
    if not isinstance(body.input, str):
        items = resolved(body.input, lambda item_id: store.find_item(item_id, owner), server.settings.max_body)
        body = body.model_copy(update={"input": items})
    return body, store.history(body.previous_response_id, owner) if body.previous_response_id else []


async def _run_in_background(
    store: ResponseStore, writer: ResponseWriter, items: list[dict[str, Any]], owner: str, exchange: Exchange
) -> None:
    """Consumes the items of a background response and updates its stored document."""
    answer = Answer()
    try:
        while not exchange.is_over:
            for _, item in await exchange.get():
                answer.take(item)
                if isinstance(item, Started):
                    store.update(StoredResponse(writer.pending(has_started=True), [], items, owner))
        writer.document([answer])  # stores the document
    except ApiError as error:
        store.update(StoredResponse(writer.failed(error, answer), [], items, owner))
