"""/v1/messages through Anthropic's SDK."""

from __future__ import annotations

import asyncio
import json

import pytest
from running import ASK, MODEL, Running
from sdks import anthropic

GREEDY = {"model": MODEL, "max_tokens": 12, "extra_body": {"temperature": 0}}  # newer SDKs have no temperature argument
TOOL = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def total_input(usage: dict) -> int:
    return int(usage["input_tokens"]) + int(usage["cache_read_input_tokens"])


def test_answer(server: Running) -> None:
    message = server.anthropic().messages.create(messages=ASK, system="You tell stories.", **GREEDY)
    assert message.content[0].type == "text" and message.content[0].text
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 12


def test_streamed_answer_equals_the_document(server: Running) -> None:
    client = server.anthropic()
    whole = client.messages.create(messages=ASK, **GREEDY)
    with client.messages.stream(messages=ASK, **GREEDY) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert final.content[0].text == whole.content[0].text  # type: ignore[union-attr]
    assert final.stop_reason == "max_tokens"
    assert final.usage.output_tokens == 12
    assert final.usage.cache_read_input_tokens is not None
    assert final.usage.input_tokens + final.usage.cache_read_input_tokens == whole.usage.input_tokens + (
        whole.usage.cache_read_input_tokens or 0
    )
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 1


def test_events_as_bytes(server: Running) -> None:
    body = {"messages": ASK, "stream": True, "max_tokens": 12, "temperature": 0}
    with server.client() as client, client.stream("POST", "/v1/messages?beta=true", json=body) as response:
        lines = [line for line in response.iter_lines() if line]
    assert lines[0] == ": keep-alive"
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    for name, data in zip(names, (line for line in lines if line.startswith("data: ")), strict=True):
        assert json.loads(data.removeprefix("data: "))["type"] == name


def test_async_stream(server: Running) -> None:
    async def ask() -> str:
        async with server.async_anthropic().messages.stream(messages=ASK, **GREEDY) as stream:
            return "".join([text async for text in stream.text_stream])

    whole = server.anthropic().messages.create(messages=ASK, **GREEDY)
    assert asyncio.run(ask()) == whole.content[0].text  # type: ignore[union-attr]


def test_stop_sequence(server: Running) -> None:
    client = server.anthropic()
    text = client.messages.create(messages=ASK, **GREEDY).content[0].text  # type: ignore[union-attr]
    message = client.messages.create(messages=ASK, stop_sequences=[text[4:7]], **GREEDY)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", text[4:7])
    assert message.content[0].text == text[: text.index(text[4:7])]  # type: ignore[union-attr]


def test_a_forced_tool_and_its_result(server: Running) -> None:
    client = server.anthropic()
    options = {**GREEDY, "max_tokens": 200, "tools": [TOOL]}
    choice = {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}
    with client.messages.stream(messages=ASK, tool_choice=choice, **options) as stream:
        message = stream.get_final_message()
    assert message.stop_reason == "tool_use"
    (call,) = [block for block in message.content if block.type == "tool_use"]
    assert call.name == "get_weather"
    assert isinstance(call.input["city"], str)  # type: ignore[index]
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}
    turns = [
        *ASK,
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]},
        {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]},
    ]
    after = client.messages.create(messages=turns, tool_choice={"type": "none"}, **options)
    assert after.stop_reason in ("end_turn", "max_tokens")


def test_count_tokens_equals_the_usage(server: Running) -> None:
    client = server.anthropic()
    counted = client.messages.count_tokens(model=MODEL, messages=ASK, system="Be brief.", tools=[TOOL])
    message = client.messages.create(messages=ASK, system="Be brief.", tools=[TOOL], **GREEDY)
    assert counted.input_tokens == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


# Long enough to disconnect from: the schema needs a thousand numbers.
NUMBERS = {"type": "json_schema", "schema": {"type": "array", "items": {"type": "integer"}, "minItems": 1000}}
LONG = {"model": MODEL, "max_tokens": 1500, "messages": ASK, "extra_body": {"output_config": {"format": NUMBERS}}}


def test_a_stream_closed_early_ends_its_request(patient: Running) -> None:
    patient.wait_until(running=0, waiting=0)
    with patient.anthropic().messages.stream(**LONG) as stream:
        next(iter(stream.text_stream))
    record = patient.wait_until(running=0, waiting=0)["requests"][-1]
    assert record["endpoint"] == "/v1/messages"
    assert record["outcome"] == "cancelled"
    assert 0 < record["generated_tokens"] < 1500


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
def test_a_task_that_is_cancelled_ends_its_request(patient: Running, is_stream: bool) -> None:
    async def leave() -> None:
        client = patient.async_anthropic()

        async def ask() -> None:
            if not is_stream:
                await client.messages.create(**LONG)
            async with client.messages.stream(**LONG) as stream:
                async for _ in stream:
                    pass

        task = asyncio.create_task(ask())
        await asyncio.to_thread(patient.wait_until, running=1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    patient.wait_until(running=0, waiting=0)
    asyncio.run(leave())
    record = patient.wait_until(running=0, waiting=0)["requests"][-1]
    assert (record["endpoint"], record["outcome"]) == ("/v1/messages", "cancelled")


def test_errors(server: Running) -> None:
    client = server.anthropic()
    with pytest.raises(anthropic.BadRequestError) as long:
        client.messages.create(messages=[{"role": "user", "content": "word " * 3000}], **GREEDY)
    error = long.value.body["error"]  # type: ignore[index]
    assert error["type"] == "invalid_request_error"
    assert error["message"].startswith("prompt is too long: ") and error["message"].endswith(" tokens > 2048 maximum")
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(messages=ASK, model="other", max_tokens=1)
    with server.client() as raw:
        refused = raw.post("/v1/messages", json={"messages": ASK, "max_tokens": 1, "nonsense": 1})
    assert refused.status_code == 400
    assert refused.json() == {
        "type": "error",
        "error": {
            "type": "invalid_request_error",
            "message": "Unrecognized request argument supplied: nonsense",
        },
    }


def test_tool_runners_go_on_without_threads(server: Running) -> None:
    """The newest SDKs' tool runners ask for a thread first; this refusal makes them send whole conversations."""

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return f"sunny in {city}"

    runner = server.anthropic().beta.messages.tool_runner(model=MODEL, max_tokens=8, messages=ASK, tools=[get_weather])
    (message,) = list(runner)
    assert message.stop_reason == "max_tokens"
    for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
        with pytest.raises(anthropic.BadRequestError) as refused:
            server.anthropic().messages.create(messages=ASK, model=MODEL, max_tokens=1, extra_body={"thread": thread})
        error = refused.value.body["error"]  # type: ignore[index]
        assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
        assert error["message"].startswith("threads are not supported")


def test_claude_code_requests(server: Running) -> None:
    """The shape of Claude Code's requests: billing line, late system message, adaptive thinking."""
    body = {
        "model": "claude-some-model",
        "max_tokens": 8,
        "stream": False,
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: a=1"},
            {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "<system-reminder>"}, {"type": "text", "text": "Hi"}],
            },
            {"role": "system", "content": [{"type": "text", "text": "Environment", "cache_control": {}}]},
        ],
        "tools": [TOOL | {"cache_control": {"type": "ephemeral"}, "defer_loading": False}],
        "thinking": {"type": "adaptive", "display": "omitted"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
        "metadata": {"user_id": "u"},
    }
    with server.client() as client:
        first = client.post("/v1/messages?beta=true", json=body)
        assert first.status_code == 200, first.text
        assert first.json()["model"] == "claude-some-model"
        assert first.headers["lucebox-ignored"] == "context_management, metadata"
        body["system"][0]["text"] = "x-anthropic-billing-header: a=2"  # type: ignore[index]
        body["messages"][1]["content"] = "Environment"  # type: ignore[index]
        second = client.post("/v1/messages?beta=true", json=body)
    assert total_input(first.json()["usage"]) == total_input(second.json()["usage"])  # the prompts are equal
