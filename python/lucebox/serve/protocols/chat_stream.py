"""Formats answers as OpenAI's chat completions: streamed chunks, or one document."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from lucebox.generation.answer import Answer, Reasoning, Text, ToolCall
from lucebox.generation.events import ReasoningDelta, TextDelta, ToolArguments, ToolEnd, ToolStart, Warning
from lucebox.generation.request import Finished, Item, Progress
from lucebox.results import TokenLogprob
from lucebox.serve.delivery import KEEP_ALIVE, sse
from lucebox.serve.errors import ApiError, openai_error
from lucebox.serve.protocols.compression import compression_field
from lucebox.serve.protocols.openai_common import DONE, LogprobWriter, comment, timings, usage, usage_so_far
from lucebox.serve.protocols.seams import Seams, reasoning_of, text_of

__all__ = ["ChatWriter", "chat_completion"]

TOOL_READY = "lucebox.tool_ready"
"""The chunk's field of a complete call. The chunk changes nothing for clients that do not know the field."""


def finish_reason(finished: Finished, may_run: bool) -> str:
    """may_run: the answer has calls, all complete."""
    if finished.reason == "length":
        return "length"
    return "tool_calls" if may_run else "stop"


class ChatWriter:
    """Formats the stream of a chat completion with n answers."""

    def __init__(
        self,
        model: str,
        *,
        n: int,
        with_usage: bool,
        logprobs: LogprobWriter | None,
        with_spans: bool = False,
        announces_calls: bool = False,
    ) -> None:
        """announces_calls: a chunk has each call as soon as it is complete."""
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }
        self._n = n
        self._with_usage = with_usage
        self._with_spans = with_spans
        self._logprobs = logprobs
        self._pending: list[list[TokenLogprob]] = [[] for _ in range(self._n)]
        self._seams = [Seams() for _ in range(self._n)]
        self._has_calls = [False] * self._n
        self._has_broken = [False] * self._n
        self._announces_calls = announces_calls
        self._calls: dict[tuple[int, int], ToolCall] = {}  # by answer and call
        self._finished: dict[int, Finished] = {}
        self._progress: dict[int, Progress] = {}

    def open(self) -> bytes:
        return b"".join(self._delta(i, {"role": "assistant", "content": ""}) for i in range(self._n))

    def write(self, index: int, item: Item) -> bytes:
        match item:
            case TextDelta(text):
                return self._delta(index, {"content": self._seams[index].delta(Text, text)})
            case ReasoningDelta(text):
                return self._delta(index, {"reasoning_content": self._seams[index].delta(Reasoning, text)})
            case ToolStart(i, id, name):
                self._has_calls[index] = True
                self._seams[index].interrupt()
                self._calls[index, i] = ToolCall(id, name)
                call = {"index": i, "id": id, "type": "function", "function": {"name": name, "arguments": ""}}
                return self._delta(index, {"tool_calls": [call]})
            case ToolArguments(i, delta):
                self._calls[index, i].arguments += delta
                return self._delta(index, {"tool_calls": [{"index": i, "function": {"arguments": delta}}]})
            case ToolEnd(i, is_broken):
                self._has_broken[index] |= is_broken
                if self._announces_calls and not is_broken:
                    return self._delta(index, {}, fields={TOOL_READY: self._ready(index, i)})
            case TokenLogprob():
                self._pending[index].append(item)
            case Progress():
                self._progress[index] = item
            case Warning(text):
                return comment(text)
            case Finished():
                self._finished[index] = item
                may_run = self._has_calls[index] and not self._has_broken[index]
                return self._delta(index, {}, finish_reason(item, may_run), compression_field(item, self._with_spans))
        return b""

    def beat(self) -> bytes:
        return KEEP_ALIVE

    def close(self) -> bytes:
        if not self._with_usage:
            return DONE
        finished = [self._finished[i] for i in range(self._n)]
        totals = {"usage": usage(finished, self._n), "timings": timings(finished[0])}
        return sse({**self._head, "choices": [], **totals}) + DONE

    def fail(self, error: ApiError) -> bytes:
        return sse(openai_error(error))

    def _ready(self, index: int, i: int) -> dict[str, Any]:
        call = self._calls[index, i]
        return {"index": i, "id": call.id, "name": call.name, "arguments": call.arguments}

    def _delta(
        self, index: int, delta: dict[str, Any], reason: str | None = None, fields: Mapping[str, Any] | None = None
    ) -> bytes:
        """One chunk of the stream. fields: its further fields."""
        choice: dict[str, Any] = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        if self._logprobs is not None and self._pending[index]:
            choice["logprobs"] = {"content": self._logprobs.chat(self._pending[index]), "refusal": None}
            self._pending[index] = []
        chunk: dict[str, Any] = {**self._head, "choices": [choice], **(fields or {})}
        if self._with_usage:
            chunk["usage"] = usage_so_far(self._progress.get(index))
        return sse(chunk)


def chat_completion(
    model: str, answers: Sequence[Answer], logprobs: LogprobWriter | None, *, with_spans: bool = False
) -> dict[str, Any]:
    """The document of a chat completion without streaming."""
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
                "finish_reason": finish_reason(finished[index], answer.may_run),
            }
            for index, answer in enumerate(answers)
        ],
        "usage": usage(finished, len(finished)),
        "timings": timings(finished[0]),
        **compression_field(finished[0], with_spans),
    }
    if warnings := [warning for answer in answers for warning in answer.warnings]:
        result["warnings"] = warnings
    return result


def _message(answer: Answer) -> dict[str, Any]:
    text, reasoning = text_of(answer), reasoning_of(answer)
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if answer.calls:
        message["content"] = text or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
    return message
