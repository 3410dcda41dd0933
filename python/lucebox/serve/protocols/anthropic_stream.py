"""Formats answers as Anthropic's messages: content blocks, streamed or as one document."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from lucebox.generation.answer import Answer, Reasoning, Text, ToolCall
from lucebox.generation.events import ReasoningDelta, TextDelta, ToolArguments, ToolEnd, ToolStart, Warning
from lucebox.generation.request import Finished, Item, Started
from lucebox.serve.delivery import KEEP_ALIVE, sse
from lucebox.serve.errors import ApiError, anthropic_error
from lucebox.serve.protocols.compression import compression_field
from lucebox.serve.protocols.encoded_reasoning import encode_reasoning
from lucebox.serve.protocols.openai_common import comment, energy, original_tokens, timings

__all__ = ["MessageWriter"]

Kind: TypeAlias = Literal["text", "thinking", "tool_use"]


class MessageWriter:
    """Formats one answer. One block is open at a time; an event of another kind closes it.

    A call is buffered until it is complete: clients may run a tool_use block once it ends, and no event can retract
    one.
    """

    def __init__(self, model: str, *, omits_thinking: bool, with_spans: bool = False) -> None:
        self._id = f"msg_{secrets.token_hex(12)}"
        self._model = model
        self._omits_thinking = omits_thinking
        self._with_spans = with_spans
        self._index = -1  # index of the newest block
        self._open: Kind | None = None  # kind of the open block
        self._reasoning = ""  # text of the open thinking block
        self._call: ToolCall | None = None  # the buffered call
        self._has_calls = self._has_broken = False
        self._finished: Finished | None = None

    def open(self) -> bytes:
        return KEEP_ALIVE  # message_start needs the number of cached tokens, which is unknown before admission

    def write(self, index: int, item: Item) -> bytes:
        match item:
            case Started():
                usage = _usage(item.prompt_tokens, item.cached_tokens, 0)
                return _event("message_start", message=self._message([], None, None, usage)) + _event("ping")
            case TextDelta(text):
                return self._block("text", {"text": ""}) + self._delta("text_delta", text=text)
            case ReasoningDelta(text):
                data = self._block("thinking", {"thinking": "", "signature": ""})
                self._reasoning += text
                return data if self._omits_thinking else data + self._delta("thinking_delta", thinking=text)
            case ToolStart(_, id, name):
                self._has_calls = True
                self._call = ToolCall(id, name)
                return self._end()
            case ToolArguments(_, delta):
                assert self._call is not None
                self._call.arguments += delta
            case ToolEnd(_, is_broken):
                self._has_broken |= is_broken
                assert self._call is not None
                self._call.is_broken = is_broken
                return self._held_call(self._call)
            case Warning(text):
                return comment(text)
            case Finished():
                self._finished = item
        return b""

    def beat(self) -> bytes:
        return sse({"type": "ping"}, "ping")

    def close(self) -> bytes:
        finished = self._finished
        assert finished is not None
        stop = {
            "stop_reason": _stop_reason(finished, self._has_calls and not self._has_broken),
            "stop_sequence": finished.stop_string,
        }
        facts = {"usage": _usage_of(finished), "timings": timings(finished)}
        message_delta = _event("message_delta", delta=stop, **facts, **compression_field(finished, self._with_spans))
        return self._end() + message_delta + _event("message_stop")

    def fail(self, error: ApiError) -> bytes:
        return sse(anthropic_error(error), "error")

    def document(self, answers: Sequence[Answer]) -> dict[str, Any]:
        answer = answers[0]
        assert answer.finished is not None
        finished = answer.finished
        message = self._message(
            [self._content(block) for block in answer.blocks],
            _stop_reason(finished, answer.may_run),
            finished.stop_string,
            _usage_of(finished),
        )
        message |= {"timings": timings(finished), **compression_field(finished, self._with_spans)}
        return message | ({"warnings": answer.warnings} if answer.warnings else {})

    def _content(self, block: Text | Reasoning | ToolCall) -> dict[str, Any]:
        match block:
            case Text(text):
                return {"type": "text", "text": text}
            case Reasoning(text):
                shown = "" if self._omits_thinking else text
                return {"type": "thinking", "thinking": shown, "signature": encode_reasoning(text)}
            case ToolCall(is_broken=True):
                return {"type": "text", "text": _broken_text(block)}
            case ToolCall(id, name, arguments):
                return {"type": "tool_use", "id": id, "name": name, "input": json.loads(arguments)}

    def _message(
        self,
        content: list[Any],
        stop_reason: str | None,
        stop_sequence: str | None,
        usage: dict[str, int] | dict[str, float],
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": usage,
        }

    def _held_call(self, call: ToolCall) -> bytes:
        if call.is_broken:
            return self._block("text", {"text": ""}) + self._delta("text_delta", text=_broken_text(call)) + self._end()
        block = self._block("tool_use", {"id": call.id, "name": call.name, "input": {}})
        return block + self._delta("input_json_delta", partial_json=call.arguments) + self._end()

    def _block(self, kind: Kind, fields: dict[str, Any]) -> bytes:
        """Opens a block of this kind unless one is open."""
        if self._open == kind:
            return b""
        ended = self._end()
        self._open = kind
        self._index += 1
        return ended + _event("content_block_start", index=self._index, content_block={"type": kind, **fields})

    def _delta(self, kind: str, **fields: str) -> bytes:
        return _event("content_block_delta", index=self._index, delta={"type": kind, **fields})

    def _end(self) -> bytes:
        if self._open is None:
            return b""
        data = b""
        if self._open == "thinking":
            data = self._delta("signature_delta", signature=encode_reasoning(self._reasoning))
            self._reasoning = ""
        self._open = None
        return data + _event("content_block_stop", index=self._index)


def _broken_text(call: ToolCall) -> str:
    """A broken call as text, because a tool_use block takes only complete input."""
    return f"{call.name}: {call.arguments}"


def _event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, **fields}, kind)


def _usage(prompt: int, cached: int, output: int) -> dict[str, int]:
    """Anthropic's usage: input_tokens excludes cached tokens."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }


def _usage_of(finished: Finished) -> dict[str, float]:
    usage = finished.usage
    counts = _usage(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
    return {**counts, **original_tokens(finished, "original_input_tokens"), **energy([finished])}


def _stop_reason(finished: Finished, may_run: bool) -> str:
    """may_run: the answer has calls, all complete."""
    if finished.reason == "length":
        return "max_tokens"
    if may_run:
        return "tool_use"
    return "stop_sequence" if finished.reason == "stop_string" else "end_turn"
