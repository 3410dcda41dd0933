"""The tags that matter inside a value of an XML-like call, found while the text still arrives.

A value is plain text and may contain any tag, so a tag counts only together with the tag that must follow it. Models
also write closers that are slightly wrong; these count under the same condition.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

__all__ = [
    "BARE_OPEN",
    "CLOSE",
    "END_FUNCTION",
    "END_PARAMETER",
    "PARAMETER",
    "Found",
    "Kind",
    "closes_again",
    "find_tag",
    "quotes_whole_calls",
]

OPEN, CLOSE = "<tool_call>", "</tool_call>"
BARE_OPEN, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"

_Part: TypeAlias = str | tuple[str, ...] | re.Pattern[str]
_SPACE = re.compile(r"\s{0,64}")
_NAME = re.compile(r"[^<>\n]{1,200}")
_AFTER_NAME = (">", "\n")
_CLOSER = re.compile(
    r"[^\s<>]{0,64}>?"
)  # the rest of </parameter>, </parameter/>, </parameter_function> or </parameter
_FOLLOWERS = (PARAMETER, END_FUNCTION, CLOSE)
_BEGIN = rf"(?P<begin>(?P<opener>{OPEN}\s{{0,64}})?<function[^<>\n]{{0,200}}>\s{{0,64}}(?=<parameter|{END_FUNCTION}))"
_CLOSES = rf"(?P<block>\s{{0,64}}{CLOSE})?"
_BOUNDARY = re.compile(
    rf"{_BEGIN}"
    rf"|</parameter[^\s<>]{{0,64}}>?\s{{0,64}}(?:(?P<next>{PARAMETER})|(?P<cut>{CLOSE})|{END_FUNCTION})"
    rf"|(?P<end>{END_FUNCTION}){_CLOSES}"
)
_QUOTED = re.compile(
    rf"{_BEGIN}|(?P<parameter>{PARAMETER})|(?P<closer></parameter[^\s<>]{{0,64}}>?)|{END_FUNCTION}{_CLOSES}"
)
_BLOCK_END = re.compile(rf"\s{{0,64}}{CLOSE}")


class Kind(Enum):
    MAYBE = auto()
    """More text decides."""
    PARAMETER = auto()
    """The value is closed, and the next parameter's name follows."""
    NAMED = auto()
    """The value is not closed, but a declared parameter begins; its name is in `name`."""
    FUNCTION = auto()
    """The value and the function are closed."""
    BLOCK = auto()
    """The value and the whole block are closed."""
    INNER_OPEN = auto()
    """The value quotes a call; only the opening tag is consumed."""
    INNER_CLOSE = auto()
    """The quoted call ends."""


@dataclass(frozen=True, slots=True)
class Found:
    """A tag at the beginning of a text."""

    kind: Kind
    end: int = 0
    """Length of the tag, in characters."""
    name: str = ""


MAYBE = Found(Kind.MAYBE)


def find_tag(text: str, key: str, declared: Collection[str], *, depth: int, begins_line: bool) -> Found | None:
    """The tag that `text` begins with, inside the value of `key`; None if it begins with none.

    text: begins with "<", or with a line break before it, which belongs to the closer.
    declared: names of the tool's parameters.
    depth: quoted calls that are open. The tags of a quoted call do not end the value.
    begins_line: a parameter that is not closed may end here.
    """
    start = 1 if text.startswith("\n") else 0
    if start == len(text):
        return MAYBE
    is_open = False
    for found in _candidates(text, start, key, declared, depth, begins_line or start == 1):
        if found is not None and found.kind is not Kind.MAYBE:
            return found
        is_open = is_open or found is not None
    return MAYBE if is_open else None


def closes_again(text: str, *, has_opener: bool) -> bool:
    """Whether the text after a call has closing tags that match none of the calls opened in that text. The call's last
    value may then have quoted all of it.

    has_opener: the call before had the tag that opens a block, so `</tool_call>` without one closes that call.
    """
    openers: list[bool] = []  # of the calls that are open
    for found in _BOUNDARY.finditer(text):
        if found["begin"]:
            openers.append(bool(found["opener"]))
        elif openers:
            closes = found["cut"] or found["block"] or _BLOCK_END.match(text, found.end())
            if not found["next"] and not openers.pop() and closes and has_opener:
                return True
        elif not found["end"] or found["block"]:
            return True
    return False


def quotes_whole_calls(value: str) -> bool:
    """Whether every call that a value quotes is balanced: it has its own closing tags and no others.

    If a quoted call lacks its end, tags of the enclosing call closed it, and the value extends too far.
    """
    calls: list[tuple[bool, bool]] = []  # open calls: (has an opener, is inside a parameter)
    for found in _QUOTED.finditer(value):
        if found["begin"]:
            calls.append((bool(found["opener"]), False))
        elif calls:
            has_opener, is_inside = calls.pop()
            if found["closer"] and not is_inside:
                return False
            if found["parameter"] or found["closer"]:
                calls.append((has_opener, bool(found["parameter"])))
            elif is_inside or bool(found["block"]) != has_opener:
                return False
    return not calls


def _candidates(
    text: str, start: int, key: str, declared: Collection[str], depth: int, begins_line: bool
) -> Iterator[Found | None]:
    yield _inner_open(text, start)
    if depth > 0:
        yield _ended(_match(text, start, END_FUNCTION), Kind.INNER_CLOSE)
        return
    yield _closed(text, start, "</parameter", _CLOSER)
    yield _ended(_match(text, start, f"</{key}>", _SPACE, PARAMETER), Kind.PARAMETER)
    yield _ended(_match(text, start, f"</{key}>", _SPACE, END_FUNCTION, _SPACE, CLOSE), Kind.BLOCK)
    yield _ended(_match(text, start, END_FUNCTION, _SPACE, CLOSE), Kind.BLOCK)
    if begins_line and declared:
        yield _named(text, start, declared)


def _inner_open(text: str, start: int) -> Found | None:
    end = _match(text, start, BARE_OPEN, _NAME, ">")
    if end is None or end < 0:
        return _ended(end, Kind.INNER_OPEN)
    follows = _match(text, end, _SPACE, (PARAMETER, END_FUNCTION))
    return MAYBE if follows == _SHORT else None if follows is None else Found(Kind.INNER_OPEN, end)


def _closed(text: str, start: int, *closer: _Part) -> Found | None:
    end = _match(text, start, *closer, _SPACE, _FOLLOWERS)
    if end is None or end < 0:
        return _ended(end, Kind.MAYBE)
    follower = next(tag for tag in _FOLLOWERS if text.endswith(tag, 0, end))
    return Found({PARAMETER: Kind.PARAMETER, END_FUNCTION: Kind.FUNCTION, CLOSE: Kind.BLOCK}[follower], end)


def _named(text: str, start: int, declared: Collection[str]) -> Found | None:
    end = _match(text, start, PARAMETER, _NAME, _AFTER_NAME)
    if end is None or end < 0:
        return _ended(end, Kind.NAMED)
    name = text[start + len(PARAMETER) : end - 1].strip()
    return Found(Kind.NAMED, end, name) if name in declared else None


def _ended(end: int | None, kind: Kind) -> Found | None:
    return None if end is None else MAYBE if end == _SHORT else Found(kind, end)


_SHORT = -1


def _match(text: str, at: int, *parts: _Part) -> int | None:
    """The end of the parts, matched in order from `at`; _SHORT if the text ends first; None if the text differs."""
    for part in parts:
        if isinstance(part, re.Pattern):
            run = part.match(text, at)
            if run is None:
                return _SHORT if at == len(text) else None
            at = run.end()
            if at == len(text):
                return _SHORT
            continue
        options = (part,) if isinstance(part, str) else part
        option = next((option for option in options if text.startswith(option, at)), None)
        if option is None:
            return _SHORT if any(option.startswith(text[at:]) for option in options) else None
        at += len(option)
    return at
