"""Replays a stored response as the events of its stream, with one delta per text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lucebox.serve.delivery import sse
from lucebox.serve.protocols.responses_stream import PART_EVENTS

__all__ = ["events_of", "numbered", "opening_events"]

Event = dict[str, Any]
RESULTS = ("completed_at", "timings", "compression", "warnings")  # fields present only in ended responses
ENDS = {"completed": "response.completed", "incomplete": "response.incomplete"}


def numbered(events: Iterable[Event], first: int, starting_after: int) -> bytes:
    """Server-sent events, numbered from `first`; only events after number `starting_after`."""
    return b"".join(
        sse({"type": event["type"], "sequence_number": number, **event}, event["type"])
        for number, event in enumerate(events, first)
        if number > starting_after
    )


def opening_events(document: Mapping[str, Any]) -> Iterator[Event]:
    """The first two events, which a running response has too."""
    begun = {name: value for name, value in document.items() if name not in RESULTS}
    begun |= {"status": "in_progress", "output": [], "usage": None, "error": None, "incomplete_details": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}


def events_of(document: Mapping[str, Any]) -> Iterator[Event]:
    """All events after the first two of an ended response."""
    for index, item in enumerate(document["output"]):
        empty: dict[str, Any] = {"arguments": ""} if item["type"] == "function_call" else {}
        empty |= {key: [] for key in ("content", "summary") if key in item}
        yield {
            "type": "response.output_item.added",
            "output_index": index,
            "item": {**item, **empty, "status": "in_progress"},
        }
        for event in _text_events(item):
            yield {**event, "item_id": item["id"], "output_index": index}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": ENDS.get(document["status"], "response.failed"), "response": document}


def _text_events(item: Mapping[str, Any]) -> Iterator[Event]:
    if item["type"] == "function_call":
        kind = "response.function_call_arguments"
        if item["arguments"]:
            yield {"type": f"{kind}.delta", "delta": item["arguments"]}
        if item["status"] == "completed":
            yield {"type": f"{kind}.done", "name": item["name"], "arguments": item["arguments"]}
        return
    for number, part in enumerate(item.get("summary") or item.get("content") or ()):
        text_kind, part_kind, index = PART_EVENTS[part["type"]]
        at = {index: number}
        logprobs = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
        yield {
            "type": f"{part_kind}.added",
            **at,
            "part": {**part, "text": "", **({"logprobs": []} if logprobs else {})},
        }
        yield {"type": f"{text_kind}.delta", **at, "delta": part["text"], **logprobs}
        yield {"type": f"{text_kind}.done", **at, "text": part["text"], **logprobs}
        yield {"type": f"{part_kind}.done", **at, "part": part}
