"""Checks of OpenAI's responses."""

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

TOOL = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": PLACE_SCHEMA,
    "strict": False,
}
FORCED: dict[str, Any] = {
    "tools": [TOOL],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_output_tokens": CALL_TOKENS,
}


def answer(client: Client) -> str:
    answer = client.responses().json()
    require(answer["object"] == "response", "not a response")
    require(answer["status"] in ("completed", "incomplete"), f"status {answer['status']}")
    require(any(item["type"] in ("message", "reasoning") for item in answer["output"]), "no message or reasoning item")
    return f"{answer['usage']['input_tokens']} + {answer['usage']['output_tokens']} tokens"


def stream(client: Client) -> str:
    events = [event for _, event in client.responses(stream=True).events() if event]
    names = [event["type"] for event in events]
    require(names[0] == "response.created", f"starts with {names[0]}")
    require(names[-1] in ("response.completed", "response.incomplete"), f"ends with {names[-1]}")
    require("response.output_item.done" in names, "no response.output_item.done, which Codex reads")
    numbers = [event["sequence_number"] for event in events if "sequence_number" in event]
    require(numbers == sorted(set(numbers)), "sequence numbers do not ascend")
    return f"{len(events)} events"


def forced_tool(client: Client) -> str:
    output = client.responses(**FORCED).json()["output"]
    call = first((item for item in output if item["type"] == "function_call"), "no function_call")
    require(call["call_id"] and call["name"] == "weather", "no call_id, or the wrong tool")
    require("city" in json.loads(call["arguments"]), "arguments without the required property")
    return str(call["arguments"])[:60]


def streamed_tool(client: Client) -> str:
    events = [event for _, event in client.responses(stream=True, **FORCED).events() if event]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    missing = "no function_call in a response.output_item.done, which Codex reads"
    call = first((item for item in done if item["type"] == "function_call"), missing)
    call_events = [event for event in events if event.get("item_id") == call["id"]]
    deltas = [e["delta"] for e in call_events if e["type"] == "response.function_call_arguments.delta"]
    require("".join(deltas) == call["arguments"], f"the deltas join to {''.join(deltas)[:60]}")
    require("city" in json.loads(call["arguments"]), "arguments without the required property")
    return f"{len(deltas)} deltas: {call['arguments'][:60]}"


def tool_result(client: Client) -> str:
    def used(result: str) -> int:
        turns = [
            {"role": "user", "content": QUESTION},
            {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": ARGUMENTS},
            {"type": "function_call_output", "call_id": "call_1", "output": result},
        ]
        usage = client.responses(input=turns, tools=[TOOL], max_output_tokens=16).json()["usage"]
        return int(usage["input_tokens"])

    return result_in_prompt(used(""), used(TOOL_RESULT))


def too_long(client: Client) -> str:
    reply = client.responses(client.too_long, stream=True)
    if reply.status == 400:
        error = reply.json(400)["error"]
    else:
        failures = (event for _, event in reply.events() if event.get("type") == "response.failed")
        error = first(failures, "no response.failed in the stream")["response"]["error"]
    require(error["code"] == "context_length_exceeded", f"code {error['code']}")
    return f"status {reply.status}, {error['code']}"


CHECKS: tuple[tuple[str, CheckFunction], ...] = (
    ("answer", answer),
    ("stream", stream),
    ("forced tool", forced_tool),
    ("streamed tool", streamed_tool),
    ("tool result", tool_result),
    ("too long", too_long),
)
