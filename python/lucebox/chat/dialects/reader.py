"""The base of all dialect readers: a coroutine that receives a block of calls one character at a time."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeAlias

from lucebox.chat.json_text import Malformed

__all__ = ["Ahead", "Arguments", "CallReader", "End", "Name", "Part", "Steps"]


@dataclass(frozen=True, slots=True)
class Name:
    """A call begins; its name is complete. The tool may be unknown."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A delta of the JSON text of the call's arguments."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The call's arguments are complete."""


class Ahead(Enum):
    """How much text to read after a call before the call counts as complete."""

    NONE = auto()
    CALL = auto()
    """Up to the next call."""
    END = auto()
    """Up to the end of the answer."""


Part: TypeAlias = Name | Arguments | End
Steps: TypeAlias = Generator[None, str, str]
"""Receives characters; returns the characters it read beyond the block."""


class CallReader:
    """Reads one block of calls. A dialect implements `_read`, which calls `begin`, `give` and `end`.

    tools: schema of the arguments by name of each tool that may be called.
    """

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        self.parts: list[Part] = []
        """Parts that were read but not yet returned by `push`."""
        self.may_end = False
        """Whether every call begun is complete, so that the text may end here."""
        self.rest: str | None = None
        """Set when the block ends: text that was read beyond it."""
        self.unread = ""
        """Text that no part holds yet."""
        self.ahead = Ahead.END
        """How much text after a call may still show that the call had not ended."""
        self.tools = tools
        self._steps = self._read()
        next(self._steps)

    def push(self, char: str) -> list[Part]:
        """The parts that this character completes.

        Raises:
            Malformed: the text is not a call; the message says why.
        """
        self.unread += char
        try:
            self._steps.send(char)
        except StopIteration as end:
            self.rest = end.value
        return self._take_parts()

    def finish(self) -> list[Part]:
        """The parts that the end of the text completes; none by default.

        Raises:
            Malformed: the text after a call shows that the call had not ended there.
        """
        return []

    def cut(self) -> str:
        """Ends a call that breaks off: returns the part of its arguments that `push` has withheld."""
        return ""

    def _take_parts(self) -> list[Part]:
        parts, self.parts = self.parts, []
        return parts

    def begin(self, name: str) -> None:
        self.may_end = False
        self.unread = ""
        self.parts.append(Name(name))

    def give(self, arguments: str) -> None:
        self.unread = ""
        if arguments:
            self.parts.append(Arguments(arguments))

    def end(self) -> None:
        self.unread = ""
        self.parts.append(End())
        self.may_end = True

    def _read(self) -> Steps:
        raise NotImplementedError


def after_space(char: str = " ") -> Generator[None, str, str]:
    """The first character from `char` on that is not white space."""
    while char.isspace():
        char = yield
    return char


def literal(text: str, char: str) -> Generator[None, str, None]:
    """Reads exactly `text`; `char` is the first character."""
    for i, expected in enumerate(text):
        if i > 0:
            char = yield
        if char != expected:
            raise Malformed(f"expected {text!r}")
