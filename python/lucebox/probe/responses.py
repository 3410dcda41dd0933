"""OpenAI's responses."""

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

TOOL = {"type": "function", "name": "weather", "description": "Of a city.", "parameters": PLACE, "strict": False}
FORCED: dict[str, Any] = {
    "tools": [TOOL],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_output_tokens": CALL_TOKENS,
}


def answer(server: Asked) -> str:
    answer = server.responses().json()
    need(answer["object"] == "response", "not a response")
    need(answer["status"] in ("completed", "incomplete"), f"status {answer['status']}")
    need(any(item["type"] in ("message", "reasoning") for item in answer["output"]), "no item")
    return f"{answer['usage']['input_tokens']} + {answer['usage']['output_tokens']} tokens"


def stream(server: Asked) -> str:
    events = [event for _, event in server.responses(stream=True).events() if event]
    names = [event["type"] for event in events]
    need(names[0] == "response.created", f"starts with {names[0]}")
    need(names[-1] in ("response.completed", "response.incomplete"), f"ends with {names[-1]}")
    need("response.output_item.done" in names, "no response.output_item.done, on which Codex acts")
    numbers = [event["sequence_number"] for event in events if "sequence_number" in event]
    need(numbers == sorted(set(numbers)), "sequence numbers do not ascend")
    return f"{len(events)} events"


def forced_tool(server: Asked) -> str:
    output = server.responses(**FORCED).json()["output"]
    call = first((item for item in output if item["type"] == "function_call"), "no function_call")
    need(call["call_id"] and call["name"] == "weather", "no call_id, or another tool")
    need("city" in json.loads(call["arguments"]), "arguments without the required member")
    return str(call["arguments"])[:60]


def streamed_tool(server: Asked) -> str:
    events = [event for _, event in server.responses(stream=True, **FORCED).events() if event]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    nothing = "no function_call in a response.output_item.done, on which Codex acts"
    call = first((item for item in done if item["type"] == "function_call"), nothing)
    of_call = [event for event in events if event.get("item_id") == call["id"]]
    deltas = [e["delta"] for e in of_call if e["type"] == "response.function_call_arguments.delta"]
    need("".join(deltas) == call["arguments"], f"the deltas join to {''.join(deltas)[:60]}")
    need("city" in json.loads(call["arguments"]), "arguments without the required member")
    return f"{len(deltas)} deltas: {call['arguments'][:60]}"


def tool_result(server: Asked) -> str:
    def used(result: str) -> int:
        turns = [
            {"role": "user", "content": QUESTION},
            {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": ARGUMENTS},
            {"type": "function_call_output", "call_id": "call_1", "output": result},
        ]
        usage = server.responses(input=turns, tools=[TOOL], max_output_tokens=16).json()["usage"]
        return int(usage["input_tokens"])

    return grown(used(""), used(RESULT))


def too_long(server: Asked) -> str:
    reply = server.responses(server.too_long, stream=True)
    if reply.status == 400:
        error = reply.json(400)["error"]
    else:
        failures = (event for _, event in reply.events() if event.get("type") == "response.failed")
        error = first(failures, "no response.failed in the stream")["response"]["error"]
    need(error["code"] == "context_length_exceeded", f"code {error['code']}")
    return f"status {reply.status}, {error['code']}"


CHECKS: tuple[tuple[str, CheckFunction], ...] = (
    ("answer", answer),
    ("stream", stream),
    ("forced tool", forced_tool),
    ("streamed tool", streamed_tool),
    ("tool result", tool_result),
    ("too long", too_long),
)
