"""Parses a truncated JSON object into members: the arguments of a call that was cut off in an earlier turn."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

__all__ = ["Member", "members_of"]

_DECODER = json.JSONDecoder(strict=False)
_SPACE = re.compile(r"\s*")
_CUT_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(u[0-9a-fA-F]{0,3})?$")


@dataclass(frozen=True, slots=True)
class Member:
    """A key and its value as plain text: a string's characters, or the JSON of another value."""

    key: str
    value: str
    is_complete: bool


def members_of(text: str) -> list[Member]:
    """The members before the truncation. Text that is not an object has none."""
    members: list[Member] = []
    at = _after_space(text, 0)
    while at < len(text) and text[at] in "{,":
        at = _after_space(text, at + 1)
        try:
            key, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        at = _after_space(text, at)
        if not isinstance(key, str) or text[at : at + 1] != ":":
            break
        at = _after_space(text, at + 1)
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            members.append(Member(key, _begun(text[at:]), False))
            break
        is_complete = end < len(text) or text[end - 1] in '"]}'  # a number at the end may be truncated
        members.append(Member(key, value if isinstance(value, str) else text[at:end], is_complete))
        at = _after_space(text, end)
    return members


def _begun(text: str) -> str:
    """The characters of a truncated string; any other value unchanged."""
    if not text.startswith('"'):
        return text
    try:
        return str(json.loads(_CUT_ESCAPE.sub(r"\1", text) + '"', strict=False))
    except ValueError:
        return text[1:]


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()
