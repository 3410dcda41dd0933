"""Formats answers for Ollama's API: lines of JSON, or one document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, Literal, TypeAlias

from lucebox.generation.answer import Answer, Reasoning, Text, ToolCall
from lucebox.generation.events import ReasoningDelta, TextDelta, ToolArguments, ToolEnd, ToolStart, Warning
from lucebox.generation.request import Finished, Item
from lucebox.results import TokenLogprob
from lucebox.serve.delivery import json_line
from lucebox.serve.errors import ApiError, ollama_error
from lucebox.serve.protocols.openai_common import LogprobWriter
from lucebox.serve.protocols.seams import Seams, joined, reasoning_of

__all__ = ["OllamaWriter", "Route", "created_at"]

Route: TypeAlias = Literal["chat", "generate"]


class OllamaWriter:
    """Formats one answer. A call is sent once it is complete, because its arguments are an object."""

    def __init__(self, route: Route, model: str, logprobs: LogprobWriter | None) -> None:
        self._route = route
        self._model = model
        self._logprobs = logprobs
        self._pending: list[TokenLogprob] = []
        self._warnings: list[str] = []
        self._seams = Seams()
        self._call: ToolCall | None = None
        self._n_calls = 0  # sent
        self._finished: Finished | None = None

    def open(self) -> bytes:
        return self.beat()

    def write(self, index: int, item: Item) -> bytes:
        match item:
            case TextDelta(text):
                return self._line(content=self._seams.delta(Text, text))
            case ReasoningDelta(text):
                return self._line(thinking=self._seams.delta(Reasoning, text))
            case ToolStart(_, id, name):
                self._call = ToolCall(id, name)
            case ToolArguments(_, delta):
                assert self._call is not None
                self._call.arguments += delta
            case ToolEnd(_, is_broken):
                assert self._call is not None
                self._call.is_broken = is_broken
                self._seams.interrupt()
                if not is_broken:
                    return self._line(calls=[self._call])
                text = self._seams.delta(Text, _broken_text(self._call))
                self._seams.interrupt()
                return self._line(content=text)
            case TokenLogprob():
                self._pending.append(item)
            case Warning(text):
                self._warnings.append(text)
            case Finished():
                self._finished = item
        return b""

    def beat(self) -> bytes:
        """A line without text, because clients parse every line."""
        return self._line()

    def close(self) -> bytes:
        assert self._finished is not None
        return json_line({**self._part(), **_ending(self._finished, self._warnings)})

    def fail(self, error: ApiError) -> bytes:
        return json_line(ollama_error(error))

    def document(self, answers: Sequence[Answer]) -> dict[str, Any]:
        (answer,) = answers
        assert answer.finished is not None
        self._pending = answer.logprobs
        texts = [
            block.text if isinstance(block, Text) else _broken_text(block)
            for block in answer.blocks
            if isinstance(block, Text) or (isinstance(block, ToolCall) and block.is_broken)
        ]
        calls = [call for call in answer.calls if not call.is_broken]
        part = self._part(joined(texts), thinking=reasoning_of(answer), calls=calls)
        return {**part, **_ending(answer.finished, answer.warnings)}

    def loaded(self) -> dict[str, Any]:
        """The answer to a request without a prompt, which only asks to load the model."""
        return {**self._part(), "done": True, "done_reason": "load"}

    def _line(self, content: str = "", thinking: str = "", calls: Sequence[ToolCall] = ()) -> bytes:
        return json_line({**self._part(content, thinking, calls), "done": False})

    def _part(self, content: str = "", thinking: str = "", calls: Sequence[ToolCall] = ()) -> dict[str, Any]:
        part: dict[str, Any] = {"model": self._model, "created_at": created_at()}
        thought = {"thinking": thinking} if thinking else {}
        if self._route == "generate":
            part |= {"response": content, **thought}
        else:
            part["message"] = {"role": "assistant", "content": content, **thought}
            if calls:
                part["message"]["tool_calls"] = [
                    {
                        "id": call.id,
                        "index": i,  # Ollama has it in the function alone; LiteLLM reads it here
                        "function": {"index": i, "name": call.name, "arguments": json.loads(call.arguments)},
                    }
                    for i, call in enumerate(calls, self._n_calls)
                ]
                self._n_calls += len(calls)
        if self._logprobs is not None and self._pending:
            part["logprobs"] = self._logprobs.chat(self._pending)
            self._pending = []
        return part


def created_at() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _broken_text(call: ToolCall) -> str:
    """A broken call as text, because clients run every call they receive."""
    return f"{call.name}: {call.arguments}"


def _ending(finished: Finished, warnings: Sequence[str]) -> dict[str, Any]:
    """The end of an answer. Durations are nanoseconds."""
    times, usage = finished.timings, finished.usage
    ending: dict[str, Any] = {
        "done": True,
        "done_reason": "length" if finished.reason == "length" else "stop",
        "total_duration": round(1e9 * (finished.queue_s + times.prefill_s + times.decode_s)),
        "load_duration": 0,
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": round(1e9 * times.prefill_s),
        "eval_count": usage.completion_tokens,
        "eval_duration": round(1e9 * times.decode_s),
    }
    return ending | ({"warnings": list(warnings)} if warnings else {})
