"""POST /v1/chat/completions."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from lucebox.results import TokenLogprob
from lucebox.serve.answer import Answer
from lucebox.serve.conversation import AnswerFormat, Conversation
from lucebox.serve.delivery import sse
from lucebox.serve.errors import ApiError, openai_body, openai_error
from lucebox.serve.events import ReasoningDelta, TextDelta, ToolArguments, ToolStart, Warning
from lucebox.serve.model import Limits
from lucebox.serve.protocols.body import Body, Ignored, Name, SampledMore, Stop, sampling_of, stops_of
from lucebox.serve.protocols.openai_common import DONE, LogprobWriter, StreamOptions, comment, timings, usage
from lucebox.serve.protocols.openapi import ERRORS, documented
from lucebox.serve.request import Finished, Item
from lucebox.serve.server import server_of
from lucebox.serve.thinking import ThinkingRequest
from lucebox.serve.tools import Tool, ToolChoice

__all__ = ["ChatRequest", "ChatWriter", "chat_completion", "conversation_of", "limits_of", "router"]

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class TextPart(Body):
    type: Literal["text"]
    text: str
    cache_control: Ignored = None


class Function(Body):
    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(Body):
    type: Literal["function"]
    function: Function
    cache_control: Ignored = None


class CalledFunction(Body):
    name: str = Field(min_length=1, max_length=256)
    arguments: str = Field("", description="JSON text.")


class CalledTool(Body):
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Ignored = None


class InstructionMessage(Body):
    role: Literal["system", "developer"]
    content: str | list[TextPart]
    name: Ignored = None


class UserMessage(Body):
    role: Literal["user"]
    content: str | list[TextPart]
    name: Ignored = None


class AssistantMessage(Body):
    role: Literal["assistant"]
    content: str | list[TextPart] | None = None
    tool_calls: list[CalledTool] | None = None
    reasoning_content: str | None = Field(None, description="Reasoning of that turn, for templates that keep it.")
    reasoning: str | None = Field(None, description="The same under another name.")
    reasoning_details: Ignored = None
    name: Ignored = None
    refusal: Ignored = None
    annotations: Ignored = None
    audio: None = None
    function_call: None = None


class ToolMessage(Body):
    role: Literal["tool"]
    content: str | list[TextPart]
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


class ChatRequest(SampledMore):
    """OpenAI's chat completion."""

    model: Name | None = None
    messages: list[Message] = Field(min_length=1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: Stop | list[Stop] | None = None
    n: int | None = Field(None, ge=1, le=16)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    tools: list[ToolDefinition] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: Effort | None = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Further variables of the chat template.")
    modalities: list[Literal["text"]] | None = None
    store: Ignored = None
    user: Ignored = None
    metadata: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    verbosity: Ignored = None


def conversation_of(body: ChatRequest) -> Conversation:
    variables = dict(body.chat_template_kwargs or {})
    switch = variables.pop("enable_thinking", None)
    if switch is not None and not isinstance(switch, bool):
        raise ApiError("invalid", "enable_thinking must be true or false", "chat_template_kwargs.enable_thinking")
    return Conversation(
        messages=[message_of(message) for message in body.messages],
        tools=[tool_of(tool.function) for tool in body.tools or []],
        tool_choice=tool_choice_of(body),
        thinking=thinking_of(body, switch),
        answer_format=format_of(body.response_format),
        template_vars=variables,
    )


def thinking_of(body: ChatRequest, switch: bool | None) -> ThinkingRequest:
    reasoning = body.reasoning
    effort = (reasoning and reasoning.effort) or body.reasoning_effort
    if switch is None:
        asked = reasoning.enabled if reasoning else None
        switch = asked if effort is None else effort != "none"
    budget = reasoning.max_tokens if reasoning else None
    return ThinkingRequest(
        "default" if switch is None else "on" if switch else "off", None if effort == "none" else effort, budget
    )


def limits_of(body: ChatRequest) -> Limits:
    asked = [n for n in (body.max_tokens, body.max_completion_tokens) if n is not None]
    return Limits(min(asked, default=None), stops_of(body.stop))


def tool_choice_of(body: ChatRequest) -> ToolChoice:
    parallel = body.parallel_tool_calls is not False
    choice = body.tool_choice or "auto"
    if isinstance(choice, ChosenTool):
        return ToolChoice("required", (choice.function.name,), parallel)
    return ToolChoice(choice, (), parallel)


def tool_of(function: Function) -> Tool:
    return Tool(
        function.name,
        function.description or "",
        function.parameters or {"type": "object", "properties": {}},
        bool(function.strict),
    )


def format_of(asked: ResponseFormat | None) -> AnswerFormat | None:
    match asked:
        case JsonObjectFormat():
            return AnswerFormat("json_object")
        case JsonSchemaFormat(json_schema=schema):
            return AnswerFormat("json_schema", schema.schema_)
        case RegexFormat(regex=text):
            return AnswerFormat("regex", text=text)
        case GrammarFormat(grammar=text):
            return AnswerFormat("grammar", text=text)
    return None


def message_of(message: Message) -> dict[str, Any]:
    result: dict[str, Any] = {"role": message.role, "content": text_of(message.content)}
    if isinstance(message, AssistantMessage):
        if message.tool_calls:
            result["tool_calls"] = [
                call.model_dump(exclude={"index"}, exclude_none=True) for call in message.tool_calls
            ]
        if (reasoning := message.reasoning_content or message.reasoning) is not None:
            result["reasoning_content"] = reasoning
    if isinstance(message, ToolMessage):
        result["tool_call_id"] = message.tool_call_id
        if message.name is not None:
            result["name"] = message.name
    return result


def text_of(content: str | Sequence[TextPart] | None) -> str:
    if content is None:
        return ""
    return content if isinstance(content, str) else "".join(part.text for part in content)


def finish_reason(finished: Finished, has_calls: bool) -> str:
    if finished.reason == "length":
        return "length"
    return "tool_calls" if has_calls else "stop"


class ChatWriter:
    """The stream of a chat completion."""

    def __init__(self, body: ChatRequest, model: str, logprobs: LogprobWriter | None) -> None:
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }
        self._n = body.n or 1
        self._with_usage = body.stream_options is not None and body.stream_options.include_usage is True
        self._logprobs = logprobs
        self._pending: list[list[TokenLogprob]] = [[] for _ in range(self._n)]
        self._has_calls = [False] * self._n
        self._finished: list[Finished] = []

    def open(self) -> bytes:
        return b"".join(self._delta(i, {"role": "assistant", "content": ""}) for i in range(self._n))

    def write(self, index: int, item: Item) -> bytes:
        match item:
            case TextDelta(text):
                return self._delta(index, {"content": text})
            case ReasoningDelta(text):
                return self._delta(index, {"reasoning_content": text})
            case ToolStart(i, id, name):
                self._has_calls[index] = True
                call = {"index": i, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
                return self._delta(index, {"tool_calls": [call]})
            case ToolArguments(i, delta):
                return self._delta(index, {"tool_calls": [{"index": i, "function": {"arguments": delta}}]})
            case TokenLogprob():
                self._pending[index].append(item)
            case Warning(text):
                return comment(text)
            case Finished():
                self._finished.append(item)
                return self._delta(index, {}, finish_reason(item, self._has_calls[index]))
        return b""

    def close(self) -> bytes:
        if not self._with_usage:
            return DONE
        totals = {"usage": usage(self._finished), "timings": timings(self._finished[0])}
        return sse({**self._head, "choices": [], **totals}) + DONE

    def fail(self, error: ApiError) -> bytes:
        return sse(openai_error(error))

    def _delta(self, index: int, delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice: dict[str, Any] = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        if self._logprobs is not None and self._pending[index]:
            choice["logprobs"] = {"content": self._logprobs.chat(self._pending[index]), "refusal": None}
            self._pending[index] = []
        chunk: dict[str, Any] = {**self._head, "choices": [choice]}
        if self._with_usage:
            chunk["usage"] = None
        return sse(chunk)


def chat_completion(model: str, answers: Sequence[Answer], logprobs: LogprobWriter | None) -> dict[str, Any]:
    """The document of a chat completion that is not streamed."""
    finished = [answer.finished for answer in answers if answer.finished is not None]
    result = {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": index,
                "message": _message(answer),
                "logprobs": logprobs and {"content": logprobs.chat(answer.logprobs), "refusal": None},
                "finish_reason": finish_reason(finished[index], bool(answer.calls)),
            }
            for index, answer in enumerate(answers)
        ],
        "usage": usage(finished),
        "timings": timings(finished[0]),
    }
    if warnings := [warning for answer in answers for warning in answer.warnings]:
        result["warnings"] = warnings
    return result


def _message(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["content"] = answer.text or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
    return message


router = APIRouter()


@router.post("/v1/chat/completions", **documented("Answers a conversation.", ERRORS))
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    server = server_of(request)
    model = server.model.named(body.model)
    conversation, sampling, limits = conversation_of(body), sampling_of(body), limits_of(body)
    logprobs = None
    if body.logprobs:
        sampling["logprobs"] = body.top_logprobs or 0
        logprobs = LogprobWriter(server.model.llm.tokenizer)
    elif body.top_logprobs is not None:
        raise ApiError("invalid", "top_logprobs needs logprobs", "top_logprobs")
    requests = await server.prepared(
        lambda: server.model.chat(conversation, sampling, limits, request.url.path, body.n or 1)
    )
    if body.stream:
        return server.stream(requests, ChatWriter(body, model, logprobs), body.ignored())
    return server.whole(
        requests, lambda answers: chat_completion(model, answers, logprobs), openai_body, body.ignored()
    )
