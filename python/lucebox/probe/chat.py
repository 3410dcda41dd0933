"""OpenAI's chat completions."""

from __future__ import annotations

import json
from typing import Any

from lucebox.probe.asking import ARGUMENTS, CALL_TOKENS, PLACE, QUESTION, RESULT, Asked, CheckFunction, grown, need

__all__ = ["CHECKS"]

PREFIX = "The weather in the harbour was calm, and the boats lay still. " * 60  # several pages of KV
TOOL = {"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": PLACE}}
# One call: a small model would go on calling.
FORCED: dict[str, Any] = {
    "tools": [TOOL],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_tokens": CALL_TOKENS,
}


def answer(server: Asked) -> str:
    answer = server.chat().json()
    choice, usage = answer["choices"][0], answer["usage"]
    need(choice["message"]["role"] == "assistant", "no role")
    need(choice["finish_reason"] in ("stop", "length"), f"finish_reason {choice['finish_reason']}")
    need(usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"], f"usage {usage}")
    return f"{usage['prompt_tokens']} + {usage['completion_tokens']} tokens"


def length(server: Asked) -> str:
    answer = server.chat(max_tokens=1).json()
    need(answer["choices"][0]["finish_reason"] == "length", "a cut answer does not say so")
    need(answer["usage"]["completion_tokens"] == 1, f"usage {answer['usage']}")
    return "finish_reason length"


def stream(server: Asked) -> str:
    events = [event for _, event in server.chat(stream=True, stream_options={"include_usage": True}).events()]
    need(events[-1] == {}, "no [DONE] at the end")
    chunks = [event["choices"][0] for event in events if event.get("choices")]
    need(chunks[0]["delta"].get("role") == "assistant", "the first chunk has no role")
    need(chunks[-1]["finish_reason"] in ("stop", "length"), "the last chunk has no finish_reason")
    need(any(event.get("usage") for event in events), "no usage, though it was asked for")
    plain = server.chat().json()["choices"][0]["message"]
    text = "".join(chunk["delta"].get("content") or "" for chunk in chunks)
    need(text == (plain["content"] or ""), "the stream's text differs from the plain answer's")
    return f"{len(chunks)} chunks"


def cached_tokens(server: Asked) -> str:
    for _ in range(2):
        usage = server.chat(PREFIX + QUESTION).json()["usage"]
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    need(cached, "the second time no token was cached")
    return f"{cached} of {usage['prompt_tokens']} tokens"


def forced_tool(server: Asked) -> str:
    choice = server.chat(**FORCED).json()["choices"][0]
    need(choice["finish_reason"] == "tool_calls", f"finish_reason {choice['finish_reason']}")
    call = choice["message"]["tool_calls"][0]
    need(call["id"] and call["function"]["name"] == "weather", "no id, or another tool")
    need("city" in json.loads(call["function"]["arguments"]), "arguments without the required member")
    return str(call["function"]["arguments"])[:60]


def streamed_tool(server: Asked) -> str:
    events = [event for _, event in server.chat(stream=True, **FORCED).events()]
    choices = [event["choices"][0] for event in events if event.get("choices")]
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls") or []]
    need(calls, "no call in the stream")
    need(calls[0].get("id") and calls[0]["function"].get("name") == "weather", "the first delta has no id and name")
    need(all(call["index"] == 0 for call in calls), "deltas of one call with different indices")
    need(choices[-1]["finish_reason"] == "tool_calls", f"finish_reason {choices[-1]['finish_reason']}")
    arguments = "".join(call["function"].get("arguments") or "" for call in calls)
    need("city" in json.loads(arguments), f"the deltas join to {arguments[:60]}")
    return f"{len(calls)} deltas: {arguments[:60]}"


def tool_result(server: Asked) -> str:
    def used(result: str) -> int:
        call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
        turns = [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": result},
        ]
        usage = server.chat(messages=turns, tools=[TOOL], max_tokens=1).json()["usage"]
        return int(usage["prompt_tokens"])

    return grown(used(""), used(RESULT))


def json_schema(server: Asked) -> str:
    form = {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": PLACE}}
    answer = server.chat(response_format=form, max_tokens=CALL_TOKENS).json()["choices"][0]["message"]["content"]
    need("city" in json.loads(answer), f"not as the schema says: {answer[:60]}")
    return str(answer)[:60]


def too_long(server: Asked) -> str:
    error = server.chat(server.too_long).json(400)["error"]
    need(error.get("code") == "context_length_exceeded", f"code {error.get('code')}")
    return str(error["message"])[:60]


def malformed(server: Asked) -> str:
    error = server.ask("/v1/chat/completions", "{").json(400)["error"]
    need(error["message"], "no message")
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
