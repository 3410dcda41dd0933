"""Reads and writes large JSON in steps: Python's own functions hold the GIL for a whole text, seconds for a large one,
and the event loop waits meanwhile."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from lucebox.text.json_shape import MAX_DEPTH, check_shape

__all__ = ["dump_large", "load_json"]

SMALL = 1 << 16
"""Characters that one step may read or write."""
SMALL_VALUES = 16_000
"""Values of a longer text that one step may read: half of those that a text of SMALL characters may have. An agent's
conversation of 60K tokens has 2,700."""
PART = 1 << 16
"""Characters of a string that one step may read or write."""
FEW = 2000
"""Values that one step may read or write."""

_SPACE = re.compile(r"[ \t\n\r]*")
# Items of a list, up to a comma, which one step reads: short scalars.
_SCALAR = r'(?:-?[0-9][0-9.eE+-]{0,30}|true|false|null|"[^"\\\x00-\x1f]{0,40}")'
_SCALARS = re.compile(rf"(?:{_SCALAR}[ \t\n\r]{{0,8}},[ \t\n\r]{{0,8}}){{8,{FEW}}}")
_STRING_PART = re.compile(r'[^"\\]*(?:\\(?:u[0-9a-fA-F]{4}|[^u])[^"\\]*)*')
_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_scan = json.JSONDecoder().raw_decode


def load_json(data: bytes, name: str) -> Any:
    """The value of a JSON text.

    Raises:
        InvalidRequestError: it has more values than json_shape allows; the message begins with the name.
        ValueError: it is no JSON.
    """
    shape = check_shape(data, name)
    if len(data) <= SMALL or (len(data) <= 16 * SMALL and shape.n_members + shape.n_items <= SMALL_VALUES):
        return json.loads(data)
    text = data.decode("utf-8-sig")
    value, end = _value(text, _space(text, 0), 0)
    if (end := _space(text, end)) != len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    return value


def _space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    if depth > MAX_DEPTH:
        raise json.JSONDecodeError("Too deep", text, at)
    first = text[at : at + 1]
    if first == "[":
        return _list(text, at + 1, depth)
    if first == "{":
        return _object(text, at + 1, depth)
    if first == '"':
        return _string(text, at)
    return _scan(text, at)


def _string(text: str, at: int) -> tuple[str, int]:
    """The string that begins at a quote. A long one is read in parts that divide no escape sequence."""
    if text.find('"', at + 1, at + PART) >= 0 or text.find('"', at + 1) < 0:
        return _scan(text, at)
    parts, end = [], at + 1
    while text[end : end + 1] != '"':
        found = _STRING_PART.match(text, end, end + PART)
        assert found is not None
        part = found[0]
        if (pair := _HIGH_SURROGATE.search(part)) and text[found.end() : found.end() + 1] != '"':
            part = part[: pair.start()] or part
        if not part:
            return _scan(text, at)  # raises
        parts.append(scanstring(f'"{part}"', 1, True)[0])
        end += len(part)
    return "".join(parts), end + 1


def _list(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    items: list[Any] = []
    at = _space(text, at)
    if text[at : at + 1] == "]":
        return items, at + 1
    while True:
        if found := _SCALARS.match(text, at):
            items += json.loads(f"[{found[0].rstrip()[:-1]}]")
            at = found.end()
        value, at = _value(text, at, depth + 1)
        items.append(value)
        at = _space(text, at)
        end = text[at : at + 1]
        if end == "]":
            return items, at + 1
        if end != ",":
            raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
        at = _space(text, at + 1)


def _object(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    members: dict[str, Any] = {}
    at = _space(text, at)
    if text[at : at + 1] == "}":
        return members, at + 1
    while True:
        if text[at : at + 1] != '"':
            raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
        key, at = scanstring(text, at + 1, True)
        at = _space(text, at)
        if text[at : at + 1] != ":":
            raise json.JSONDecodeError("Expecting ':' delimiter", text, at)
        members[key], at = _value(text, _space(text, at + 1), depth + 1)
        at = _space(text, at)
        end = text[at : at + 1]
        if end == "}":
            return members, at + 1
        if end != ",":
            raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
        at = _space(text, at + 1)


def dump_large(value: Any) -> bytes:
    """Compact JSON of a value with long lists."""
    return b"".join(part.encode("utf-8", "replace") for part in _parts(value))


def _parts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for i, (key, item) in enumerate(value.items()):
            yield f"{',' if i else '{'}{_text(key)}:"
            yield from _parts(item)
        yield "}" if value else "{}"
    elif isinstance(value, list) and value and isinstance(value[0], dict | list):
        for i, item in enumerate(value):
            yield "," if i else "["
            yield from _parts(item)
        yield "]"
    elif isinstance(value, list) and len(value) > FEW:
        for i in range(0, len(value), FEW):
            yield ("," if i else "[") + _text(value[i : i + FEW])[1:-1]
        yield "]"
    elif isinstance(value, str) and len(value) > PART:
        yield '"'
        for i in range(0, len(value), PART):
            yield _text(value[i : i + PART])[1:-1]
        yield '"'
    else:
        yield _text(value)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
