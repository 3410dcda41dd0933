"""Calls of Gemma 4: objects without quotes around keys, and a control token as the quote of strings.

    <|tool_call>call:f{a:1,b:<|"|>text<|"|>}<tool_call|>

The reader also accepts a missing closing tag, and strings without quotes. gemma4_grammar.py has the grammar.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from typing import Any

from lucebox.chat.dialects.gemma4_grammar import CLOSE, OPEN, QUOTE, TAGS, grammar, in_order, unheld_keywords
from lucebox.chat.dialects.reader import CallReader, Steps, after_space, literal
from lucebox.chat.json_text import Malformed

__all__ = [
    "OPEN",
    "TAGS",
    "THINK",
    "THINK_END",
    "Gemma4Reader",
    "grammar",
    "render_begun",
    "render_broken",
    "render_call",
    "unheld_keywords",
]

THINK, THINK_END = "<|channel>thought\n", "<channel|>"
_MAX_NAME, _MAX_DEPTH = 256, 100


class Gemma4Reader(CallReader):
    """Reads a call from after its opening tag."""

    def _read(self) -> Steps:
        char = yield from after_space((yield))
        yield from literal("call:", char)
        name = yield from _until("{", "the name of a function", (yield))
        self.begin(name)
        yield from _object(self, 1)
        self.end()
        read = ""
        while True:
            read += yield
            tag = read.lstrip()
            if tag == CLOSE:
                return ""
            if not CLOSE.startswith(tag):
                return read


def _until(end: str, what: str, char: str) -> Generator[None, str, str]:
    text = ""
    while char != end:
        if len(text) == _MAX_NAME or char in "\n,[]{}":
            raise Malformed(f"expected {what} and {end!r}")
        text += char
        char = yield
    if not text.strip():
        raise Malformed(f"expected {what}")
    return text.strip()


def _object(reader: CallReader, depth: int) -> Generator[None, str, None]:
    """Reads what follows an opening brace, to its closing brace."""
    reader.give("{")
    char = yield from after_space((yield))
    keys: set[str] = set()
    while char != "}":
        key = yield from _until(":", "a key", char)
        key = key.removeprefix(QUOTE).removesuffix(QUOTE)
        if key in keys:
            raise Malformed(f"the key {key[:100]!r} is written twice")
        keys.add(key)
        reader.give(f"{json.dumps(key, ensure_ascii=False)}: ")
        char = yield from _value(reader, (yield from after_space((yield))), depth)
        char = yield from after_space(char)
        if char == ",":
            reader.give(", ")
            char = yield from after_space((yield))
        elif char != "}":
            raise Malformed(f"expected a comma or the end of an object, got {char!r}")
    reader.give("}")


def _list(reader: CallReader, depth: int) -> Generator[None, str, None]:
    reader.give("[")
    char = yield from after_space((yield))
    while char != "]":
        char = yield from after_space((yield from _value(reader, char, depth)))
        if char == ",":
            reader.give(", ")
            char = yield from after_space((yield))
        elif char != "]":
            raise Malformed(f"expected a comma or the end of a list, got {char!r}")
    reader.give("]")


def _value(reader: CallReader, char: str, depth: int) -> Generator[None, str, str]:
    """Reads a value; `char` is its first character. Returns the character after it."""
    if char in "{[":
        if depth == _MAX_DEPTH:
            raise Malformed(f"nested more than {_MAX_DEPTH} levels deep")
        yield from (_object if char == "{" else _list)(reader, depth + 1)
        return (yield)
    text = char
    while QUOTE.startswith(text) and text != QUOTE:
        text += yield
    if text == QUOTE:
        yield from _string(reader)
        return (yield)
    while text[-1] not in ",]}\n":
        text += yield
    reader.give(_scalar(text[:-1].strip()))
    return text[-1]


def _string(reader: CallReader) -> Generator[None, str, None]:
    """Reads what follows an opening quote, to the closing quote."""
    reader.give('"')
    left = ""
    while left != QUOTE:
        left += yield
        while left and not QUOTE.startswith(left):
            reader.give(json.dumps(left[0], ensure_ascii=False)[1:-1])
            left = left[1:]
    reader.give('"')


def _scalar(text: str) -> str:
    """The JSON of a number or a literal; anything else is a string without quotes."""
    try:
        value = json.loads(text)
    except ValueError:
        return json.dumps(text, ensure_ascii=False)
    if isinstance(value, bool) or value is None or text.lstrip("-")[:1].isdigit():
        return text
    return json.dumps(text, ensure_ascii=False)


def _rendered(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_rendered(one)}" for key, one in in_order(value)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_rendered, value)) + "]"
    if isinstance(value, str):
        return f"{QUOTE}{value}{QUOTE}"
    return json.dumps(value)


def render_call(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{render_begun(name)}{_rendered(arguments)}{CLOSE}"


def render_begun(name: str) -> str:
    """A call of this dialect up to its name."""
    return f"{OPEN}call:{name}"


def render_broken(name: str, arguments: str) -> str:
    """A call of this dialect that broke off inside its arguments."""
    return render_begun(name) + arguments
