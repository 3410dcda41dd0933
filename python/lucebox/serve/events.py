"""What a running answer consists of, whatever protocol carries it, and what turns a model's text into it.

The scheduler pushes text into a `Parser` and hands the events on; each protocol writes them its own way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

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
    """More of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the reasoning before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolStart:
    """A tool call begins; its name is whole."""

    index: int
    """Of the call within this answer, from 0."""
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolArguments:
    """More of the JSON text of a call's arguments."""

    index: int
    delta: str


@dataclass(frozen=True, slots=True)
class ToolEnd:
    """A call's arguments are whole."""

    index: int


@dataclass(frozen=True, slots=True)
class Warning:
    """Something the client should know, and that changes nothing: a malformed call given out as text."""

    text: str


Event: TypeAlias = TextDelta | ReasoningDelta | ToolStart | ToolArguments | ToolEnd | Warning


class Parser(Protocol):
    """Reads one answer as it is written. Used by one thread."""

    @property
    def keeps_special(self) -> bool:
        """Control tokens are pushed as their text (a dialect is written with them); otherwise they are left out."""
        ...

    def push(self, text: str) -> list[Event]: ...

    def finish(self) -> list[Event]:
        """What is still held back, when no text follows."""
        ...


class Constraint(Protocol):
    """What the next token may be. Used by one thread, after every token."""

    @property
    def done(self) -> bool:
        """Nothing may follow: the answer ends here."""
        ...

    def mask(self) -> NDArray[np.uint32] | None:
        """A bit for each token of the vocabulary, the lowest first; None allows all."""
        ...

    def accept(self, token: int) -> None: ...


class Budget(Protocol):
    """How long reasoning may last. Used by one thread, after every token."""

    def push(self, token: int) -> list[int]:
        """Tokens that come next, whatever the model would write; where `token` ends the answer they take its place."""
        ...


class PlainText:
    """The parser of raw completions: all text is the answer."""

    keeps_special = False

    def push(self, text: str) -> list[Event]:
        return [TextDelta(text)] if text else []

    def finish(self) -> list[Event]:
        return []
