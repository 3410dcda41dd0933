"""Checks of Anthropic's messages."""

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
    first,
    require,
    result_in_prompt,
)

__all__ = ["CHECKS"]

TOOL = {"name": "weather", "description": "The weather of a city.", "input_schema": PLACE_SCHEMA}
FORCED: dict[str, Any] = {
    "tools": [TOOL],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "max_tokens": CALL_TOKENS,
}


def input_tokens(usage: dict[str, Any]) -> int:
    """All input tokens; Anthropic counts cached ones separately."""
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return sum(usage.get(name) or 0 for name in names)


def answer(client: Client) -> str:
    answer = client.messages().json()
    require(answer["type"] == "message" and answer["role"] == "assistant", "not a message")
    require(answer["stop_reason"] in ("end_turn", "max_tokens"), f"stop_reason {answer['stop_reason']}")
    require(
        all(block["type"] in ("text", "thinking") for block in answer["content"]), "a content block of another type"
    )
    return f"{answer['usage']['input_tokens']} + {answer['usage']['output_tokens']} tokens"


def stream(client: Client) -> str:
    events = client.messages(stream=True).events()
    names = [name for name, _ in events if name != "ping"]
    require(all(name == event["type"] for name, event in events), "an event's name differs from its type")
    require(names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"], f"order {names[:2]}")
    require(names.count("content_block_start") == names.count("content_block_stop"), "a content block is never closed")
    end = next(event for name, event in events if name == "message_delta")
    require(end["delta"]["stop_reason"] and end["usage"]["output_tokens"], "no stop_reason or usage at the end")
    return f"{names.count('content_block_delta')} deltas"


def count_tokens(client: Client) -> str:
    body = {"model": client.model, "messages": [{"role": "user", "content": QUESTION}]}
    counted = client.request("/v1/messages/count_tokens", body).json()["input_tokens"]
    used = input_tokens(client.messages().json()["usage"])
    require(counted == used, f"counts {counted}, uses {used}")
    return f"{counted} tokens"


def forced_tool(client: Client) -> str:
    answer = client.messages(**FORCED).json()
    require(answer["stop_reason"] == "tool_use", f"stop_reason {answer['stop_reason']}")
    call = first((block for block in answer["content"] if block["type"] == "tool_use"), "no block of type tool_use")
    require(
        call["id"] and call["name"] == "weather" and "city" in call["input"], "the wrong tool, or no required property"
    )
    return str(call["input"])[:60]


def streamed_tool(client: Client) -> str:
    events = [event for _, event in client.messages(stream=True, **FORCED).events()]
    starts = [event for event in events if event["type"] == "content_block_start"]
    start = first((e for e in starts if e["content_block"]["type"] == "tool_use"), "no block of type tool_use")
    block = start["content_block"]
    require(block["id"] and block["name"] == "weather", "content_block_start has no id and name")
    deltas = [e["delta"] for e in events if e["type"] == "content_block_delta" and e["index"] == start["index"]]
    require(all(delta["type"] == "input_json_delta" for delta in deltas), "deltas other than input_json_delta")
    arguments = "".join(delta["partial_json"] for delta in deltas)
    require("city" in json.loads(arguments), f"the deltas join to {arguments[:60]}")
    end = next(event for event in events if event["type"] == "message_delta")
    require(end["delta"]["stop_reason"] == "tool_use", f"stop_reason {end['delta']['stop_reason']}")
    return f"{len(deltas)} deltas: {arguments[:60]}"


def tool_result(client: Client) -> str:
    def used(result: str) -> int:
        call = {"type": "tool_use", "id": "call_1", "name": "weather", "input": json.loads(ARGUMENTS)}
        turns = [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": result}]},
        ]
        return input_tokens(client.messages(messages=turns, tools=[TOOL], max_tokens=1).json()["usage"])

    return result_in_prompt(used(""), used(TOOL_RESULT))


def too_long(client: Client) -> str:
    answer = client.messages(client.too_long).json(400)
    require(answer["type"] == "error", "not Anthropic's error object")
    require(
        "prompt is too long" in answer["error"]["message"], "no 'prompt is too long', on which Claude Code compacts"
    )
    return str(answer["error"]["message"])[:60]


CHECKS: tuple[tuple[str, CheckFunction], ...] = (
    ("answer", answer),
    ("stream", stream),
    ("count tokens", count_tokens),
    ("forced tool", forced_tool),
    ("streamed tool", streamed_tool),
    ("tool result", tool_result),
    ("too long", too_long),
)
