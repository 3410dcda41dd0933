"""Formats answers as OpenAI's responses: output items, streamed with an event per step or as one document."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lucebox.chat.rendering import Message
from lucebox.generation.answer import Answer, Block, Reasoning, Text, ToolCall
from lucebox.generation.events import ReasoningDelta, TextDelta, ToolArguments, ToolEnd, ToolStart, Warning
from lucebox.generation.request import Finished, Item
from lucebox.serve.delivery import sse
from lucebox.serve.errors import ApiError, openai_error
from lucebox.serve.protocols.compression import compression_field
from lucebox.serve.protocols.encoded_reasoning import encode_reasoning
from lucebox.serve.protocols.openai_common import LogprobWriter, comment, energy, original_tokens, predictions, timings
from lucebox.serve.protocols.response_ids import new_id
from lucebox.serve.protocols.responses_items import turns_of

__all__ = ["PART_EVENTS", "ResponseWriter", "usage_of"]

ECHOED: dict[str, Any] = {  # request fields that the response repeats, with their defaults
    "instructions": None,
    "max_output_tokens": None,
    "background": False,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": None,
    "truncation": "disabled",
}

PART_EVENTS = {  # part type -> (prefix of text events, prefix of part events, index field)
    "output_text": ("response.output_text", "response.content_part", "content_index"),
    "reasoning_text": ("response.reasoning_text", "response.content_part", "content_index"),
    "summary_text": ("response.reasoning_summary_text", "response.reasoning_summary_part", "summary_index"),
}


class ResponseWriter:
    """Formats one response.

    sent: the request's fields.
    origins: namespace and name of each function, by the name that the model sees.
    id_tag: see `Server.id_tag`.
    """

    def __init__(
        self,
        sent: Mapping[str, Any],
        model: str,
        origins: Mapping[str, tuple[str | None, str]],
        *,
        logprobs: LogprobWriter | None = None,
        with_spans: bool = False,
        id_tag: str = "",
    ) -> None:
        self.id = new_id("resp", id_tag)
        self.store: Callable[[dict[str, Any], list[Message]], None] = lambda document, turns: None
        """Called with the document of a completed response, and its messages."""
        self._created = int(time.time())
        self._model = model
        self._origins = origins
        self._echo = {name: sent.get(name, default) for name, default in ECHOED.items()}
        self._summarises = (sent.get("reasoning") or {}).get("summary") not in (None, "none")
        self._encrypts = "reasoning.encrypted_content" in (sent.get("include") or [])
        self._logprobs = logprobs
        self._with_spans = with_spans
        self._id_tag = id_tag
        self._n_events = 0
        self._answer = Answer()
        self._items: list[dict[str, Any]] = []  # completed output items
        self._open: Block | None = None
        self._open_id = ""
        self._n_logprobs = 0  # of the open item, sent so far

    # --- streamed

    def open(self) -> bytes:
        document = self._document("in_progress", [])
        return self._event("response.created", response=document) + self._event(
            "response.in_progress", response=document
        )

    def write(self, index: int, item: Item) -> bytes:
        self._answer.take(item)
        match item:
            case TextDelta(text):
                begun = self._begun(Text)
                logprobs = self._newest_logprobs()
                return begun + self._text_event("output_text", "delta", delta=text, logprobs=logprobs)
            case ReasoningDelta(text):
                return self._begun(Reasoning) + self._text_event(self._reasoning_type, "delta", delta=text)
            case ToolStart():
                return self._end() + self._begun(ToolCall)
            case ToolArguments(_, delta):
                return self._item_event("response.function_call_arguments.delta", delta=delta)
            case ToolEnd():
                return self._end()
            case Warning(text):
                return comment(text)
        return b""

    def beat(self) -> bytes:
        return self._event("response.in_progress", response=self._document("in_progress", []))

    def close(self) -> bytes:
        ended = self._end()
        document = self._finished_document(self._answer, self._items)
        kind = "response.incomplete" if document["status"] == "incomplete" else "response.completed"
        return ended + self._event(kind, response=document)

    def fail(self, error: ApiError) -> bytes:
        return self._event("response.failed", response=self._failed_document(error, self._items))

    # --- documents without streaming

    def document(self, answers: Sequence[Answer]) -> dict[str, Any]:
        return self._finished_document(answers[0], self._items_of(answers[0]))

    def pending(self, *, has_started: bool) -> dict[str, Any]:
        """The document of a response that is queued or running."""
        return self._document("in_progress" if has_started else "queued", [])

    def failed(self, error: ApiError, answer: Answer) -> dict[str, Any]:
        """The document of a response that failed after this partial answer."""
        return self._failed_document(error, self._items_of(answer))

    # --- items: one is open at a time

    def _begun(self, kind: type[Block]) -> bytes:
        """Opens an item of this kind unless one is open."""
        if isinstance(self._open, kind):
            return b""
        ended = self._end()
        self._open = block = self._answer.blocks[-1]
        self._open_id, self._n_logprobs = self._new_id(block), 0
        empty = ToolCall(block.id, block.name) if isinstance(block, ToolCall) else type(block)("")
        item = self._item(empty, self._open_id) | {"status": "in_progress"}
        if isinstance(block, Text):
            item["content"] = []  # each part is added by an event
        data = ended + self._event("response.output_item.added", output_index=len(self._items), item=item)
        return data if isinstance(block, ToolCall) else data + self._part_event("added", self._part(type(block)("")))

    def _end(self) -> bytes:
        """Completes the open item."""
        block = self._open
        if block is None:
            return b""
        item = self._item(block, self._open_id)
        if isinstance(block, ToolCall) and block.is_broken:
            data = b""  # the arguments never become complete
        elif isinstance(block, ToolCall):
            done = {"name": item["name"], "arguments": block.arguments}
            data = self._item_event("response.function_call_arguments.done", **done)
        else:
            part = self._part(block)
            logprobs = {"logprobs": part["logprobs"]} if isinstance(block, Text) else {}
            data = self._text_event(part["type"], "done", text=block.text, **logprobs)
            data += self._part_event("done", part)
        data += self._event("response.output_item.done", output_index=len(self._items), item=item)
        self._items.append(item)
        self._open = None
        return data

    def _items_of(self, answer: Answer) -> list[dict[str, Any]]:
        return [self._item(block, self._new_id(block)) for block in answer.blocks]

    def _item(self, block: Block, item_id: str) -> dict[str, Any]:
        status = "completed"
        match block:
            case Text(text):
                item = {"type": "message", "role": "assistant", "content": [self._part(block)]}
            case ToolCall(id, name, arguments, is_broken):
                status = "incomplete" if is_broken else "completed"
                namespace, own_name = self._origins.get(name, (None, name))
                item = {"type": "function_call", "call_id": id, "name": own_name, "arguments": arguments}
                if namespace is not None:
                    item["namespace"] = namespace
            case Reasoning(text):
                parts = [self._part(block)] if text else []
                item = {"type": "reasoning", "summary": parts if self._summarises else []}
                if not self._summarises:
                    item["content"] = parts
                if self._encrypts:
                    item["encrypted_content"] = encode_reasoning(text)
        return {"id": item_id, **item, "status": status}

    @property
    def _reasoning_type(self) -> str:
        return "summary_text" if self._summarises else "reasoning_text"

    def _part(self, block: Text | Reasoning) -> dict[str, Any]:
        """The only part of an item."""
        if isinstance(block, Text):
            logprobs = self._logprobs.chat(block.logprobs) if self._logprobs else []
            return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": logprobs}
        return {"type": self._reasoning_type, "text": block.text}

    def _newest_logprobs(self) -> list[dict[str, Any]]:
        """Log probabilities of the open text that no event has carried yet."""
        if self._logprobs is None or not isinstance(self._open, Text):
            return []
        new = self._open.logprobs[self._n_logprobs :]
        self._n_logprobs += len(new)
        return self._logprobs.chat(new)

    # --- documents and events

    def _document(self, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self._model,
            "output": output,
            "error": None,
            "incomplete_details": None,
            "usage": None,
            **self._echo,
        }

    def _failed_document(self, error: ApiError, output: list[dict[str, Any]]) -> dict[str, Any]:
        details = openai_error(error)["error"]
        document = self._document("cancelled" if error.kind == "cancelled" else "failed", output)
        return document | {"error": {"code": details["code"] or "server_error", "message": details["message"]}}

    def _finished_document(self, answer: Answer, output: list[dict[str, Any]]) -> dict[str, Any]:
        finished = answer.finished
        assert finished is not None
        is_truncated = finished.reason == "length"
        document = self._document("incomplete" if is_truncated else "completed", output)
        if is_truncated:
            document["incomplete_details"] = {"reason": "max_output_tokens"}
        document |= {"completed_at": int(time.time()), "usage": usage_of(finished), "timings": timings(finished)}
        document |= compression_field(finished, self._with_spans)
        if answer.warnings:
            document["warnings"] = answer.warnings
        self.store(document, turns_of(answer))
        return document

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = sse({"type": kind, "sequence_number": self._n_events, **fields}, kind)
        self._n_events += 1
        return data

    def _item_event(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, item_id=self._open_id, output_index=len(self._items), **fields)

    def _part_event(self, change: str, part: dict[str, Any]) -> bytes:
        """An event of the open item's only part."""
        _, event, index = PART_EVENTS[part["type"]]
        return self._item_event(f"{event}.{change}", **{index: 0}, part=part)

    def _text_event(self, part_type: str, change: str, **fields: Any) -> bytes:
        """An event of that part's text."""
        event, _, index = PART_EVENTS[part_type]
        return self._item_event(f"{event}.{change}", **{index: 0}, **fields)

    def _new_id(self, block: Block) -> str:
        return new_id({Text: "msg", Reasoning: "rs", ToolCall: "fc"}[type(block)], self._id_tag)


def usage_of(finished: Finished) -> dict[str, Any]:
    usage = finished.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            **original_tokens(finished, "original_tokens"),
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": finished.reasoning_tokens, **predictions([finished])},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        **energy([finished]),
    }
