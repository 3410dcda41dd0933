"""Checks of OpenAI's chat completions."""

from __future__ import annotations

import json
from typing import Any

from lucebox.probe.client import (
    ARGUMENTS,
    CALL_TOKENS,
    PLACE_SCHEMA,
    QUESTION,
    TOOL_RESULT,
    CheckFunction,
    Client,
    require,
    result_in_prompt,
)

__all__ = ["CHECKS"]

PREFIX = "The weather in the harbour was calm, and the boats lay still. " * 60  # several pages of KV
TOOL = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather of a city.", "parameters": PLACE_SCHEMA},
}
# At most one call, because a small model would keep calling.
FORCED: dict[str, Any] = {
    "tools": [TOOL],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_tokens": CALL_TOKENS,
}


def answer(client: Client) -> str:
    answer = client.chat().json()
    choice, usage = answer["choices"][0], answer["usage"]
    require(choice["message"]["role"] == "assistant", "no role")
    require(choice["finish_reason"] in ("stop", "length"), f"finish_reason {choice['finish_reason']}")
    require(usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"], f"usage {usage}")
    return f"{usage['prompt_tokens']} + {usage['completion_tokens']} tokens"


def length(client: Client) -> str:
    answer = client.chat(max_tokens=1).json()
    require(answer["choices"][0]["finish_reason"] == "length", "a truncated answer has another finish_reason")
    require(answer["usage"]["completion_tokens"] == 1, f"usage {answer['usage']}")
    return "finish_reason length"


def stream(client: Client) -> str:
    events = [event for _, event in client.chat(stream=True, stream_options={"include_usage": True}).events()]
    require(events[-1] == {}, "no [DONE] at the end")
    chunks = [event["choices"][0] for event in events if event.get("choices")]
    require(chunks[0]["delta"].get("role") == "assistant", "the first chunk has no role")
    require(chunks[-1]["finish_reason"] in ("stop", "length"), "the last chunk has no finish_reason")
    require(any(event.get("usage") for event in events), "no usage despite include_usage")
    plain = client.chat().json()["choices"][0]["message"]
    text = "".join(chunk["delta"].get("content") or "" for chunk in chunks)
    require(text == (plain["content"] or ""), "the streamed text differs from the text without streaming")
    return f"{len(chunks)} chunks"


def cached_tokens(client: Client) -> str:
    for _ in range(2):
        usage = client.chat(PREFIX + QUESTION).json()["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    require(cached, "no cached tokens when a prompt is repeated")
    return f"{cached} of {usage['prompt_tokens']} tokens"


def forced_tool(client: Client) -> str:
    choice = client.chat(**FORCED).json()["choices"][0]
    require(choice["finish_reason"] == "tool_calls", f"finish_reason {choice['finish_reason']}")
    call = choice["message"]["tool_calls"][0]
    require(call["id"] and call["function"]["name"] == "weather", "no id, or the wrong tool")
    require("city" in json.loads(call["function"]["arguments"]), "arguments without the required property")
    return str(call["function"]["arguments"])[:60]


def streamed_tool(client: Client) -> str:
    events = [event for _, event in client.chat(stream=True, **FORCED).events()]
    choices = [event["choices"][0] for event in events if event.get("choices")]
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls") or []]
    require(calls, "no tool call in the stream")
    require(calls[0].get("id") and calls[0]["function"].get("name") == "weather", "the first delta has no id and name")
    require(all(call["index"] == 0 for call in calls), "deltas of one call with different indices")
    require(choices[-1]["finish_reason"] == "tool_calls", f"finish_reason {choices[-1]['finish_reason']}")
    arguments = "".join(call["function"].get("arguments") or "" for call in calls)
    require("city" in json.loads(arguments), f"the deltas join to {arguments[:60]}")
    return f"{len(calls)} deltas: {arguments[:60]}"


def tool_result(client: Client) -> str:
    def used(result: str) -> int:
        call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
        turns = [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": result},
        ]
        usage = client.chat(messages=turns, tools=[TOOL], max_tokens=1).json()["usage"]
        return int(usage["prompt_tokens"])

    return result_in_prompt(used(""), used(TOOL_RESULT))


def json_schema(client: Client) -> str:
    form = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": PLACE_SCHEMA}}
    answer = client.chat(response_format=form, max_tokens=CALL_TOKENS).json()["choices"][0]["message"]["content"]
    require("city" in json.loads(answer), f"does not match the schema: {answer[:60]}")
    return str(answer)[:60]


def too_long(client: Client) -> str:
    error = client.chat(client.too_long).json(400)["error"]
    require(error.get("code") == "context_length_exceeded", f"code {error.get('code')}")
    return str(error["message"])[:60]


def malformed(client: Client) -> str:
    error = client.request("/v1/chat/completions", "{").json(400)["error"]
    require(error["message"], "no message")
    return str(error["message"])[:60]


CHECKS: tuple[tuple[str, CheckFunction], ...] = (
    ("answer", answer),
    ("length", length),
    ("stream", stream),
    ("cached tokens", cached_tokens),
    ("forced tool", forced_tool),
    ("streamed tool", streamed_tool),
    ("tool result", tool_result),
    ("json schema", json_schema),
    ("too long", too_long),
    ("malformed", malformed),
)
