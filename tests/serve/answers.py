"""Shared by the tests of answers: tools, a parser, and its events in a form that is easy to compare."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from lucebox.chat.dialects import DIALECTS
from lucebox.chat.parsing import OutputParser
from lucebox.chat.profiles import Profile, Thinking
from lucebox.chat.tools import Tool, ToolChoice
from lucebox.generation.events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolEnd,
    ToolStart,
    Warning,
)

WEATHER = Tool(
    "get_weather",
    "Weather of a city",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "exact": {"type": "boolean"},
            "where": {"type": ["object", "null"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["city"],
    },
)
WRITE = Tool("write", parameters={"type": "object", "properties": {"path": {"type": "string"}, "text": {}}})
NOTHING = Tool("nothing")
TOOLS = [WEATHER, WRITE, NOTHING]

# A grammar holds their calls, and OutputParser reads them. harmony's answers have a reader of their own.
HELD_DIALECTS = [name for name, dialect in DIALECTS.items() if dialect.grammar is not None]

Simple = tuple[str, ...]


def parser(
    dialect: str,
    *,
    tools: Sequence[Tool] = TOOLS,
    choice: ToolChoice | None = None,
    thinking: bool = True,
    prompt: str = "",
) -> OutputParser:
    ids = itertools.count()
    return OutputParser(
        Profile("test", dialect=dialect, thinking=Thinking()),
        tools,
        choice or ToolChoice(),
        thinking,
        prompt,
        new_id=lambda: f"id{next(ids)}",
    )


def simple(events: Sequence[Event]) -> list[Simple]:
    """("text", ...), ("think", ...), ("call", name, arguments), ("broken", name, arguments), ("warning", ...)."""
    out: list[Simple] = []
    for event in events:
        match event:
            case TextDelta(text) | ReasoningDelta(text):
                kind = "text" if isinstance(event, TextDelta) else "think"
                if out and out[-1][0] == kind:
                    out[-1] = (kind, out[-1][1] + text)
                else:
                    out.append((kind, text))
            case ToolStart(index, id, name):
                assert id == f"id{index}" and index == sum(e[0] in ("call", "broken", "open") for e in out)
                out.append(("open", name, ""))
            case ToolArguments(_, delta):
                assert out[-1][0] == "open"
                out[-1] = (*out[-1][:2], out[-1][2] + delta)
            case ToolEnd(_, is_broken):
                at = max(i for i, e in enumerate(out) if e[0] == "open")
                out[at] = ("broken" if is_broken else "call", *out[at][1:])
            case Warning(text):
                out.append(("warning", text))
    assert not any(e[0] == "open" for e in out)
    return out


def read(text: str, reader: OutputParser, cuts: Sequence[int] = ()) -> list[Simple]:
    """Parses a text cut at these positions."""
    events: list[Event] = []
    for start, end in itertools.pairwise([0, *sorted(cuts), len(text)]):
        events += reader.push(text[start:end])
    return simple(events + reader.finish())
