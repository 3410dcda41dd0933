"""Anthropic's messages."""

from __future__ import annotations

import json
from typing import Any

from lucebox.probe.asking import (
    ARGUMENTS,
    CALL_TOKENS,
    PLACE,
    QUESTION,
    RESULT,
    Asked,
    CheckFunction,
    first,
    grown,
    need,
)

__all__ = ["CHECKS"]

TOOL = {"name": "weather", "description": "Of a city.", "input_schema": PLACE}
FORCED: dict[str, Any] = {
    "tools": [TOOL],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "max_tokens": CALL_TOKENS,
}


def all_input(usage: dict[str, Any]) -> int:
    """With the tokens that were cached, which Anthropic counts apart."""
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    return sum(usage.get(name) or 0 for name in names)


def answer(server: Asked) -> str:
    answer = server.messages().json()
    need(answer["type"] == "message" and answer["role"] == "assistant", "not a message")
    need(answer["stop_reason"] in ("end_turn", "max_tokens"), f"stop_reason {answer['stop_reason']}")
    need(all(block["type"] in ("text", "thinking") for block in answer["content"]), "content of another type")
    return f"{answer['usage']['input_tokens']} + {answer['usage']['output_tokens']} tokens"


def stream(server: Asked) -> str:
    events = server.messages(stream=True).events()
    names = [name for name, _ in events if name != "ping"]
    need(all(name == event["type"] for name, event in events), "an event whose name is not its type")
    need(names[0] == "message_start" and names[-2:] == ["message_delta", "message_stop"], f"order {names[:2]}")
    need(names.count("content_block_start") == names.count("content_block_stop"), "a block that stays open")
    end = next(event for name, event in events if name == "message_delta")
    need(end["delta"]["stop_reason"] and end["usage"]["output_tokens"], "no stop_reason or usage at the end")
    return f"{names.count('content_block_delta')} deltas"


def count_tokens(server: Asked) -> str:
    body = {"model": server.model, "messages": [{"role": "user", "content": QUESTION}]}
    counted = server.ask("/v1/messages/count_tokens", body).json()["input_tokens"]
    used = all_input(server.messages().json()["usage"])
    need(counted == used, f"counts {counted}, uses {used}")
    return f"{counted} tokens"


def forced_tool(server: Asked) -> str:
    answer = server.messages(**FORCED).json()
    need(answer["stop_reason"] == "tool_use", f"stop_reason {answer['stop_reason']}")
    call = first((block for block in answer["content"] if block["type"] == "tool_use"), "no block of type tool_use")
    need(call["id"] and call["name"] == "weather" and "city" in call["input"], "another tool, or no required member")
    return str(call["input"])[:60]


def streamed_tool(server: Asked) -> str:
    events = [event for _, event in server.messages(stream=True, **FORCED).events()]
    starts = [event for event in events if event["type"] == "content_block_start"]
    start = first((e for e in starts if e["content_block"]["type"] == "tool_use"), "no block of type tool_use")
    block = start["content_block"]
    need(block["id"] and block["name"] == "weather", "the block begins without id and name")
    deltas = [e["delta"] for e in events if e["type"] == "content_block_delta" and e["index"] == start["index"]]
    need(all(delta["type"] == "input_json_delta" for delta in deltas), "deltas that are no input_json_delta")
    arguments = "".join(delta["partial_json"] for delta in deltas)
    need("city" in json.loads(arguments), f"the deltas join to {arguments[:60]}")
    end = next(event for event in events if event["type"] == "message_delta")
    need(end["delta"]["stop_reason"] == "tool_use", f"stop_reason {end['delta']['stop_reason']}")
    return f"{len(deltas)} deltas: {arguments[:60]}"


def tool_result(server: Asked) -> str:
    def used(result: str) -> int:
        call = {"type": "tool_use", "id": "call_1", "name": "weather", "input": json.loads(ARGUMENTS)}
        turns = [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": result}]},
        ]
        return all_input(server.messages(messages=turns, tools=[TOOL], max_tokens=1).json()["usage"])

    return grown(used(""), used(RESULT))


def too_long(server: Asked) -> str:
    answer = server.messages(server.too_long).json(400)
    need(answer["type"] == "error", "not Anthropic's envelope")
    need("prompt is too long" in answer["error"]["message"], "Claude Code compacts on 'prompt is too long'")
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
