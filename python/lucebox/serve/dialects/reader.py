"""What every dialect's reader is: a generator that is sent a block of calls a character at a time."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from lucebox.serve.json_text import Malformed

__all__ = ["Arguments", "CallReader", "End", "Name", "Part", "Steps"]


@dataclass(frozen=True, slots=True)
class Name:
    """A call begins."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the JSON text of its arguments."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """Its arguments are whole."""


Part: TypeAlias = Name | Arguments | End
Steps: TypeAlias = Generator[None, str, str]
"""Is sent characters; returns those it read that belong to what follows the block."""


class CallReader:
    """Reads one block. A dialect writes `_read`, which adds to `parts` and sets `may_end`.

    tools: the schema of the arguments of each tool that may be called, by its name.
    """

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        self.parts: list[Part] = []
        """What became known and was not taken yet."""
        self.may_end = False
        """All calls begun are whole, so that the text may end here."""
        self.rest: str | None = None
        """After the block: what was read too far."""
        self.tools = tools
        self._steps = self._read()
        next(self._steps)

    def push(self, char: str) -> list[Part]:
        """Raises:
        Malformed: this is no call; the message says why.
        """
        try:
            self._steps.send(char)
        except StopIteration as end:
            self.rest = end.value
        parts, self.parts = self.parts, []
        return parts

    def begin(self, name: str) -> None:
        if name not in self.tools:
            raise Malformed(f"there is no tool {name[:100]!r} to call")
        self.may_end = False
        self.parts.append(Name(name))

    def give(self, arguments: str) -> None:
        if arguments:
            self.parts.append(Arguments(arguments))

    def end(self) -> None:
        self.parts.append(End())
        self.may_end = True

    def _read(self) -> Steps:
        raise NotImplementedError


def after_space(char: str = " ") -> Generator[None, str, str]:
    """The first character that is not white space, `char` being the one at hand."""
    while char.isspace():
        char = yield
    return char


def literal(text: str, char: str) -> Generator[None, str, None]:
    """Reads a text whose first character is at hand."""
    for i, expected in enumerate(text):
        if i > 0:
            char = yield
        if char != expected:
            raise Malformed(f"expected {text!r}")
