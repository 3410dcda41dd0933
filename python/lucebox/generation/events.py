"""Protocol-independent streaming events, and the interfaces of parser, constraint and thinking budget.

The scheduler pushes text into a `Parser` and passes its events on. Each protocol formats them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from lucebox.generation.decode import Budget, Constraint

__all__ = [
    "Budget",
    "Constraint",
    "Event",
    "Parser",
    "PlainText",
    "ReasoningDelta",
    "TextDelta",
    "ToolArguments",
    "ToolEnd",
    "ToolStart",
    "Warning",
]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A delta of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolStart:
    """A tool call begins; its name is complete."""

    index: int
    """Index of the call within this answer, from 0."""
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """A delta of the JSON text of a call's arguments."""

    index: int
    delta: str


@dataclass(frozen=True, slots=True)
class ToolEnd:
    index: int
    is_broken: bool = False
    """The call broke off: its arguments are incomplete, and no client may run it. They are not valid JSON."""


@dataclass(frozen=True, slots=True)
class Warning:
    """A note for the client that ends nothing, such as a malformed call emitted as text."""

    text: str


Event: TypeAlias = TextDelta | ReasoningDelta | ToolStart | ToolArguments | ToolEnd | Warning


class Parser(Protocol):
    """Parses one answer incrementally. Used by one thread."""

    @property
    def keeps_special(self) -> bool:
        """Whether control tokens are pushed as text because the dialect uses them; otherwise they are skipped."""
        ...

    def push(self, text: str) -> list[Event]: ...

    def finish(self) -> list[Event]:
        """Flushes: the events of the withheld text, once no more text follows."""
        ...


class PlainText:
    """The parser of raw completions: all text is answer text."""

    keeps_special = False

    def __init__(self, warnings: Sequence[str] = ()) -> None:
        """warnings: notes on the request, emitted first."""
        self._warnings: list[Event] = [Warning(text) for text in warnings]

    def push(self, text: str) -> list[Event]:
        return [*self.finish(), TextDelta(text)] if text else []

    def finish(self) -> list[Event]:
        warnings, self._warnings = self._warnings, []
        return warnings
