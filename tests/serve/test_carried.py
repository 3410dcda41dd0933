"""Fields that clients carry back inside messages are ignored and named; null is absent; options are refused."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from lucebox.serve.protocols import anthropic, ollama_bodies, openai_chat, openai_responses
from lucebox.serve.protocols.body import MAX_NAMED
from pydantic import BaseModel, ValidationError
from running import ASK, MODEL, Running
from sdks import openai

USER = {"role": "user", "content": "Go."}
FUNCTION = {"name": "w", "arguments": "{}"}
CALL = {"id": "c1", "type": "function", "function": FUNCTION}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "r"}


def assistant(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "hm", **fields}


def read(protocol: str, body: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """The messages that a body stands for, and the names of its ignored fields."""
    match protocol:
        case "chat":
            chat = openai_chat.ChatRequest.model_validate(body)
            return openai_chat.conversation_of(chat).messages, chat.ignored()
        case "responses":
            asked = openai_responses.ResponsesRequest.model_validate(body)
            return openai_responses.conversation_of(asked, []).messages, asked.ignored()
        case "messages":
            messages = anthropic.MessagesRequest.model_validate({"max_tokens": 1, **body})
            return anthropic.conversation_of(messages).messages, messages.ignored()
        case _:
            other = ollama_bodies.ChatRequest.model_validate(body)
            return ollama_bodies.conversation_of(other).messages, other.ignored()


PART = {"type": "text", "text": "fine"}
CASES: list[tuple[str, dict[str, Any], dict[str, Any], list[str]]] = [
    # openai-python's and openai-node's parse() and stream()
    ("chat", {"messages": [USER, assistant(parsed={"a": 1}), USER]}, {"messages": [USER, assistant(), USER]},
     ["messages.parsed"]),
    ("chat", {"messages": [USER, assistant(tool_calls=[{**CALL, "function": {**FUNCTION, "parsed_arguments": {}}}]),
                           RESULT]},
     {"messages": [USER, assistant(tool_calls=[CALL]), RESULT]}, ["messages.tool_calls.function.parsed_arguments"]),
    # openai-agents-js
    ("chat", {"messages": [USER, {"role": "assistant", "content": [{**PART, "role": "assistant", "refusal": None,
                                                                    "reasoning_content": "t"}]}, USER]},
     {"messages": [USER, {"role": "assistant", "content": "fine"}, USER]},
     ["messages.content.reasoning_content", "messages.content.role"]),
    # LiteLLM's Message
    ("chat", {"messages": [USER, assistant(provider_specific_fields={"a": 1}, thinking_blocks=[], function_call=None),
                           USER]},
     {"messages": [USER, assistant(), USER]}, ["messages.provider_specific_fields", "messages.thinking_blocks"]),
    ("chat", {"messages": [USER, assistant(tool_calls=[{**CALL, "extra_content": {}, "index": 0}]), RESULT]},
     {"messages": [USER, assistant(tool_calls=[CALL]), RESULT]},
     ["messages.tool_calls.extra_content", "messages.tool_calls.index"]),
    # editor plugins
    ("chat", {"messages": [{**USER, "id": 1, "opts": {"visible": False}, "timestamp": 1}]}, {"messages": [USER]},
     ["messages.id", "messages.opts", "messages.timestamp"]),
    ("responses", {"input": [{**USER, "id": "m", "status": "completed", "created_at": 1},
                             {"type": "function_call", "call_id": "c", **FUNCTION, "parsed_arguments": {}},
                             {"type": "function_call_output", "call_id": "c", "output": [
                                 {"type": "input_text", "text": "r", "parsed": 1}]}]},
     {"input": [USER, {"type": "function_call", "call_id": "c", **FUNCTION},
                {"type": "function_call_output", "call_id": "c", "output": "r"}]},
     ["input.created_at", "input.id", "input.output.parsed", "input.parsed_arguments", "input.status"]),
    ("messages", {"messages": [{**USER, "id": "msg_1", "usage": {}}, {"role": "assistant", "content": [
        {**PART, "parsed_output": None, "citations": [], "cache_control": {"type": "ephemeral"}}]}]},
     {"messages": [USER, {"role": "assistant", "content": [PART]}]},
     ["messages.content.citations", "messages.id", "messages.usage"]),
    ("ollama", {"messages": [USER, assistant(tool_calls=[{"function": {"name": "w", "index": 0}}], created_at=1)]},
     {"messages": [USER, assistant(tool_calls=[{"function": {"name": "w"}}])]},
     ["messages.created_at", "messages.tool_calls.function.index"]),
]  # fmt: skip


@pytest.mark.parametrize(("protocol", "carried", "plain", "named"), CASES)
def test_carried_fields_change_nothing(protocol: str, carried: Any, plain: Any, named: list[str]) -> None:
    messages, ignored = read(protocol, carried)
    assert (messages, ignored) == (read(protocol, plain)[0], named)


NULLS = ("audio", "function_call", "functions", "web_search_options", "stop", "tools", "stream_options", "anything")


def test_null_is_absent() -> None:
    assert read("chat", {"messages": [USER], **dict.fromkeys(NULLS)}) == read("chat", {"messages": [USER]})
    assert read("responses", {"input": "a", **dict.fromkeys(NULLS)}) == read("responses", {"input": "a"})
    assert read("messages", {"messages": [USER], **dict.fromkeys(NULLS)}) == read("messages", {"messages": [USER]})
    calls = [{"id": None, "type": None, "function": {"name": "w", "arguments": None}}]
    assert read("chat", {"messages": [USER, assistant(tool_calls=calls)]})[0][1]["tool_calls"] == [
        {"type": "function", "function": {"name": "w", "arguments": ""}}
    ]


@pytest.mark.parametrize(
    ("protocol", "body"),
    [
        ("chat", {"messages": [USER], "functions": []}),
        ("chat", {"messages": [USER], "tools": [{"type": "function", "function": {"name": "w", "other": 1}}]}),
        ("chat", {"messages": [USER, assistant(function_call=FUNCTION), USER]}),
        ("chat", {"messages": [USER, assistant(audio={"id": "a"}), USER]}),
        ("chat", {"messages": None}),
        ("chat", {"messages": [{"role": "user", "content": None, "contents": "a"}]}),
        ("responses", {"input": "a", "other": 0}),
        ("messages", {"messages": [USER], "max_tokens": None}),
        ("ollama", {"messages": [USER], "options": {"other": 1}}),
    ],
)
def test_options_and_missing_content_are_refused(protocol: str, body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        read(protocol, body)


def test_clients_choose_names_but_no_headers(server: Running) -> None:
    """Names are quoted and bounded, in number and length."""
    message = {**USER, **{f"n{i}": 1 for i in range(100)}, "\r\nx: y": 1, "\N{SNOWMAN}" * 99: 1}
    with server.client() as client:
        answered = client.post("/v1/chat/completions", json={"messages": [message], "max_tokens": 1})
    assert answered.status_code == 200 and "x" not in answered.headers
    names = answered.headers["lucebox-ignored"].split(", ")
    assert len(names) == MAX_NAMED and names[0] == "messages.%0D%0Ax%3A%20y" and max(map(len, names)) < 80


def used(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": i, "name": "w", "input": {}} for i in ids]}


def result(id: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": id}


NOTE = {"type": "text", "text": "note"}


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([{"role": "user", "content": [result("a"), NOTE, result("b"), NOTE]}], ["a\n\nnote", "b\n\nnote"]),
        ([{"role": "user", "content": [NOTE, result("a"), result("b")]}], ["a\n\nnote", "b"]),
        ([{"role": "user", "content": [result("a"), result("b")]}, {"role": "user", "content": "note"}],
         ["a", "b\n\nnote"]),
        ([{"role": "user", "content": [result("a"), result("b")]}, {"role": "system", "content": "s"},
          {"role": "user", "content": [NOTE]}], ["a", "b\n\nnote", ("system", "s")]),
        ([{"role": "user", "content": [result("a"), result("b")]}, assistant(), {"role": "user", "content": [NOTE]}],
         ["a", "b", ("assistant", "hm"), ("user", "note")]),
    ],
)  # fmt: skip
def test_text_after_a_tool_result_joins_its_turn(turns: Any, expected: Any) -> None:
    messages, _ = read("messages", {"messages": [USER, used("a", "b"), *turns]})
    found = [m["content"] if m["role"] == "tool" else (m["role"], m["content"]) for m in messages[2:]]
    assert found == expected


TURNS = [USER, assistant(tool_calls=[CALL]), RESULT, {"role": "user", "content": "note"}]
ITEMS = [
    USER,
    {"type": "function_call", "call_id": "c1", **FUNCTION},
    {"type": "function_call_output", "call_id": "c1", "output": "r"},
    {"role": "user", "content": "note"},
]
OLLAMA_TURNS = [USER, assistant(tool_calls=[{"function": {"name": "w"}}]), {"role": "tool", "content": "r"}, TURNS[3]]


@pytest.mark.parametrize(
    ("protocol", "body"),
    [("chat", {"messages": TURNS}), ("responses", {"input": ITEMS}), ("ollama", {"messages": OLLAMA_TURNS})],
)
def test_elsewhere_it_is_a_turn_of_its_own(protocol: str, body: dict[str, Any]) -> None:
    messages, _ = read(protocol, body)
    assert [(m["role"], m["content"]) for m in messages[2:]] == [("tool", "r"), ("user", "note")]


def test_counts_name_ignored_fields(server: Running) -> None:
    message = {**USER, "timestamp": 1}
    with server.client() as client:
        counted = client.post("/v1/messages/count_tokens", json={"messages": [message]})
        input_tokens = client.post("/v1/responses/input_tokens", json={"input": [message]})
    assert counted.headers["lucebox-ignored"] == "messages.timestamp"
    assert input_tokens.headers["lucebox-ignored"] == "input.timestamp"


class Weather(BaseModel):
    city: Literal["Oslo"]


def test_the_parse_helper_goes_on(server: Running) -> None:
    """openai-python's own messages are sent back as they are."""
    client, tools = server.openai(), [openai.pydantic_function_tool(Weather, name="w")]
    asked: dict[str, Any] = {"model": MODEL, "tools": tools, "max_tokens": 60, "temperature": 0}
    first = client.chat.completions.parse(messages=ASK, tool_choice="required", parallel_tool_calls=False, **asked)
    message = first.choices[0].message
    (call,) = message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Weather)
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    turns: list[Any] = [*ASK, message, result]
    second = client.chat.completions.create(messages=turns, tool_choice="none", **asked)
    assert second.choices[0].message.content
