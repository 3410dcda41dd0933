"""OpenAI's chat completions: the request's schema, its conversation, and the route /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from lucebox.chat.conversation import Conversation, answer_format_of, tool_choice_of, tools_of
from lucebox.chat.presence import LEFT
from lucebox.chat.thinking import ThinkingRequest
from lucebox.generation.request import GenerationRequest
from lucebox.serve.body_route import body_router
from lucebox.serve.errors import ApiError, openai_body
from lucebox.serve.model import Limits
from lucebox.serve.protocols.body import (
    Body,
    CacheHint,
    Carried,
    Ignored,
    ImagePart,
    Many,
    Name,
    OpenAISampled,
    ResultPart,
    Stop,
    Stops,
    sampling_of,
    stops_of,
    with_images,
)
from lucebox.serve.protocols.chat_stream import ChatWriter, chat_completion
from lucebox.serve.protocols.compression import Compressible, compression_of, wants_spans
from lucebox.serve.protocols.openai_common import LogprobWriter, StreamOptions, wants_progress, wants_usage
from lucebox.serve.protocols.openapi import ERRORS, documented
from lucebox.serve.protocols.router_fields import RouterFields
from lucebox.serve.protocols.structured_outputs import Guided, guided_format
from lucebox.serve.server import owner_of, server_of

__all__ = ["ChatRequest", "conversation_of", "limits_of", "router"]

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class TextPart(Carried):
    type: Literal["text"]
    text: str
    cache_control: CacheHint = None


class Function(Body):
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(Body):
    type: Literal["function"]
    function: Function
    cache_control: Ignored = None


class CalledFunction(Carried):
    name: str = Field(min_length=1, max_length=256)
    arguments: str = Field("", description="JSON text.")


class CalledTool(Carried):
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class InstructionMessage(Carried):
    role: Literal["system", "developer"]
    content: str | Many[TextPart]


class UserMessage(Carried):
    role: Literal["user"]
    content: str | Many[TextPart | ImagePart]


class AssistantMessage(Carried):
    role: Literal["assistant"]
    content: str | Many[TextPart] | None = None
    tool_calls: Many[CalledTool] | None = None
    reasoning_content: str | None = Field(None, description="The turn's reasoning, for templates that use it.")
    reasoning: str | None = Field(None, description="Another name of reasoning_content.")
    audio: None = None
    function_call: None = None


class ToolMessage(Carried):
    role: Literal["tool"]
    content: str | Many[TextPart | ResultPart]
    tool_call_id: str
    name: str | None = None


Message = Annotated[InstructionMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class ChosenFunction(Body):
    name: str


class ChosenTool(Body):
    type: Literal["function"]
    function: ChosenFunction


class JsonSchema(Body):
    name: str = Field(max_length=256)
    schema_: dict[str, Any] = Field(alias="schema", default_factory=dict)
    strict: bool | None = None
    description: str | None = None


class TextFormat(Body):
    type: Literal["text"]


class JsonObjectFormat(Body):
    type: Literal["json_object"]


class JsonSchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: JsonSchema


class RegexFormat(Body):
    type: Literal["regex"]
    regex: str


class GrammarFormat(Body):
    type: Literal["grammar"]
    grammar: str


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat | GrammarFormat, Field(discriminator="type")
]


class Reasoning(Body):
    effort: Effort | None = None
    max_tokens: int | None = Field(None, ge=0)
    enabled: bool | None = None
    summary: Ignored = None


class Prediction(Body):
    type: Literal["content"]
    content: str | Many[TextPart]


class ChatRequest(OpenAISampled, Guided, Compressible, RouterFields):
    """OpenAI's chat completion."""

    model: Name | None = None
    messages: Many[Message] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: Stop | Stops | None = None
    n: int | None = Field(None, ge=1, le=16)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: Many[ToolDefinition] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: Effort | None = None
    reasoning: Reasoning | None = None
    prediction: Prediction | None = Field(None, description="Text that the answer will mostly repeat.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Further variables of the chat template.")
    tool_ready: bool | None = Field(
        None, description="lucebox: a stream announces each tool call as soon as it is complete."
    )
    modalities: Many[Literal["text"]] | None = None
    store: Ignored = None
    user: Ignored = None
    metadata: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    verbosity: Ignored = None
    options: Ignored = None  # Hermes sends this and `think`: it takes a server with /api/tags for Ollama
    think: Ignored = None


def conversation_of(body: ChatRequest) -> Conversation:
    variables = dict(body.chat_template_kwargs or {})
    switch = variables.pop("enable_thinking", None)
    if switch is not None and not isinstance(switch, bool):
        raise ApiError("invalid", "enable_thinking must be true or false", "chat_template_kwargs.enable_thinking")
    choice, response_format = body.tool_choice or "auto", body.response_format
    return Conversation(
        messages=messages_of(body.messages),
        tools=tools_of([{"function": tool.function.model_dump(exclude_none=True)} for tool in body.tools or []]),
        tool_choice=tool_choice_of(
            choice.model_dump() if isinstance(choice, ChosenTool) else choice,
            parallel=body.parallel_tool_calls is not False,
        ),
        thinking=thinking_of(body, switch),
        answer_format=guided_format(
            body, answer_format_of(None if response_format is None else response_format.model_dump(by_alias=True))
        ),
        template_vars=variables,
        compression=compression_of(body),
    )


def thinking_of(body: ChatRequest, switch: bool | None) -> ThinkingRequest:
    reasoning = body.reasoning
    effort = (reasoning and reasoning.effort) or body.reasoning_effort
    if switch is None:
        enabled = reasoning.enabled if reasoning else None
        switch = enabled if effort is None else effort != "none"
    budget = reasoning.max_tokens if reasoning else None
    return ThinkingRequest(
        "default" if switch is None else "on" if switch else "off", None if effort == "none" else effort, budget
    )


def limits_of(body: ChatRequest) -> Limits:
    lengths = [n for n in (body.max_tokens, body.max_completion_tokens) if n is not None]
    return Limits(min(lengths, default=None), stops_of(body.stop))


def messages_of(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [_message(message, f"messages.{i}") for i, message in enumerate(messages)]


def _message(message: Message, where: str) -> dict[str, Any]:
    result = with_images({"role": message.role}, message.content, where)
    if isinstance(message, AssistantMessage):
        if message.tool_calls:
            result["tool_calls"] = [_call(call) for call in message.tool_calls]
        if (reasoning := message.reasoning_content or message.reasoning) is not None:
            result["reasoning_content"] = reasoning
    if isinstance(message, ToolMessage):
        result["tool_call_id"] = message.tool_call_id
        if message.name is not None:
            result["name"] = message.name
    return result


def _call(call: CalledTool) -> dict[str, Any]:
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {**({"id": call.id} if call.id is not None else {}), "type": "function", "function": function}


def text_of(content: str | Sequence[TextPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


router = body_router()


@router.post("/v1/chat/completions", **documented("Answers a conversation.", ERRORS))
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    server = server_of(request)
    running, model = await server.use(request, body.model)
    sampling, limits = sampling_of(body), limits_of(body)
    with_progress = wants_progress(body.stream_options)
    kept_name = server.streams.name_of(request.headers, owner_of(request)) if body.stream else None
    logprobs = None
    if body.logprobs:
        sampling["logprobs"] = body.top_logprobs or 0
        logprobs = LogprobWriter(running.model.loaded.tokenizer)
    elif body.top_logprobs is not None:
        raise ApiError("invalid", "top_logprobs needs logprobs", "top_logprobs")

    def make() -> tuple[list[GenerationRequest], list[str]]:
        prediction = text_of(body.prediction.content) if body.prediction else ""
        path, n = request.url.path, body.n or 1
        made = running.model.chat(conversation_of(body), sampling, limits, path, n, prediction=prediction)
        return made, body.ignored()

    requests, ignored = await server.in_thread(request, make)
    if body.stream:
        if kept_name is not None and await request.is_disconnected():
            raise ApiError("cancelled", LEFT)  # nobody would end it
        writer = ChatWriter(
            model,
            n=body.n or 1,
            with_usage=wants_usage(body.stream_options),
            logprobs=logprobs,
            with_spans=wants_spans(body),
            announces_calls=body.tool_ready is True,
        )
        return server.stream(
            running,
            requests,
            writer,
            ignored,
            owner=owner_of(request),
            kept_name=kept_name,
            with_progress=with_progress,
        )
    return server.document(
        running,
        requests,
        lambda answers: chat_completion(model, answers, logprobs, with_spans=wants_spans(body)),
        openai_body,
        ignored,
    )
