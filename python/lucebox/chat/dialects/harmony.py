"""Calls in harmony, the format of gpt-oss: an answer is a sequence of messages in channels.

    <|channel|>analysis<|message|>Reasoning.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>
    <|start|>assistant<|channel|>final<|message|>The answer.<|return|>

The recipient of a call may also follow the role. chat/harmony_parsing.py reads answers. A grammar cannot hold calls of
this format yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "ANSWER",
    "CHANNEL",
    "CLOSE",
    "ENDS",
    "MESSAGE",
    "OPEN",
    "START",
    "one_call_each",
    "render_begun",
    "render_broken",
    "render_call",
]

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")
OPEN, CLOSE = f"{CHANNEL}analysis{MESSAGE}", "<|end|>"
"""The tags around reasoning."""
ANSWER = f"{CHANNEL}final{MESSAGE}"
"""The header of the text of an answer."""


def render_call(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{render_begun(name)}{json.dumps(arguments, ensure_ascii=False)}<|call|>"


def render_begun(name: str) -> str:
    """A call of this dialect up to its name, and the rest of its header."""
    return f"{CHANNEL}commentary to=functions.{name} {CONSTRAIN}json{MESSAGE}"


def render_broken(name: str, arguments: str) -> str:
    """A call of this dialect that broke off inside its arguments."""
    return render_begun(name) + arguments


def one_call_each(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages as this format's templates take them: an assistant message has at most one call, whose result is the
    next message, and reasoning is in the field `thinking`. Text before a call joins its reasoning."""
    result: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []  # calls without a result yet
    for message in messages:
        if message.get("role") == "tool" and waiting:
            found = next((call for call in waiting if call["id"] == message.get("tool_call_id")), waiting[0])
            waiting.remove(found)
            result += [found["message"], dict(message)]
            continue
        result += [call["message"] for call in waiting]
        waiting = []
        own = {key: value for key, value in message.items() if key != "reasoning_content"}
        if reasoning := message.get("reasoning_content"):
            own["thinking"] = reasoning
        if not message.get("tool_calls"):
            result.append(own)
            continue
        thought = "\n\n".join(filter(None, (own.pop("thinking", None), own.get("content"))))
        for i, call in enumerate(message["tool_calls"]):
            one = {**own, "content": None, "tool_calls": [call]}
            if thought and i == 0:
                one["thinking"] = thought
            waiting.append({"id": call.get("id"), "message": one})
    return result + [call["message"] for call in waiting]
