"""Calls as JSON between tags: Hermes, Qwen2.5, Qwen3 and SmolLM2.

    <tool_call>
    {"name": "f", "arguments": {"a": 1}}
    </tool_call>

The reader also accepts several such objects or a list of them in one pair of tags (SmolLM2), "parameters" for
"arguments", the object inside a "function" (OpenAI's form), arguments as a JSON string, surplus closing braces, and a
missing closing tag.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from lucebox.chat.dialects.reader import CallReader, Steps, after_space, literal
from lucebox.chat.dialects.schema_types import forms_of, self_contained
from lucebox.chat.json_text import JsonScanner, Malformed
from lucebox.chat.tools import Tool

__all__ = [
    "CLOSE",
    "OPEN",
    "HermesReader",
    "call_object",
    "call_objects",
    "grammar",
    "render_begun",
    "render_broken",
    "render_call",
]

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MAX_CALLS = 16  # in one answer, by grammar


class HermesReader(CallReader):
    """Reads a block from after its opening tag."""

    def _read(self) -> Steps:
        char = yield from after_space((yield))
        yield from call_objects(self, char)
        return (yield from closing(self))


def render_call(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{OPEN}\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n{CLOSE}"


def render_begun(name: str) -> str:
    """A call of this dialect up to its name."""
    return f'{OPEN}\n{{"name": {json.dumps(name, ensure_ascii=False)}'


def render_broken(name: str, arguments: str) -> str:
    """A call of this dialect that broke off inside its arguments."""
    return f'{render_begun(name)}, "arguments": {arguments}'


def grammar(tools: Sequence[Tool], *, parallel: bool) -> str:
    """Lark rules; `calls` is one call, or several if parallel."""
    objects = " | ".join(f"call_{i}" for i in range(len(tools)))
    return "\n".join([
        f"calls: {lines_of('one', parallel)}",
        f'one: "{OPEN}\\n" ({objects}) "\\n{CLOSE}"',
        *(object_rule(i, tool, "arguments") for i, tool in enumerate(tools)),
    ])  # fmt: skip


def lines_of(rule: str, several: bool) -> str:
    """One `rule`, or up to MAX_CALLS, each on a separate line. Bounded, because a small model may never stop."""
    return f'{rule} ("\\n" {rule}){{0,{MAX_CALLS - 1}}}' if several else rule


def object_rule(i: int, tool: Tool, key: str) -> str:
    """The Lark rule `call_i`: the JSON object of a call of this tool."""
    arguments = arguments_schema(tool)
    schema = {
        "type": "object",
        "properties": {"name": {"const": tool.name}, key: arguments},
        "required": ["name", key],
        "additionalProperties": False,
        "x-guidance": JSON_FORM,
        "$defs": arguments.pop("$defs", {}),
    }
    return f"call_{i}: %json {json.dumps(schema)}"


# The separators of json.dumps and the templates. With flexible white space, a small model may emit blanks forever.
# lenient: keywords without support are not held; held_schemas warns of them.
JSON_FORM = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": ", "lenient": True}


def arguments_schema(tool: Tool) -> dict[str, Any]:
    """The schema of a tool's arguments: an object with the declared properties only, so that no key can repeat; any
    object if the schema has no properties."""
    forms = [
        {
            "type": "object",
            "properties": dict(form.properties),
            "required": [key for key in form.properties if key in form.required],
            "additionalProperties": False,
        }
        for form in forms_of(tool.parameters)
    ]
    if not any(form["properties"] for form in forms):
        closed = {"additionalProperties": False} if "properties" in tool.parameters else {}
        return self_contained({"type": "object", **closed, **tool.parameters}, tool.parameters)
    return self_contained(forms[0] if len(forms) == 1 else {"anyOf": forms}, tool.parameters)


def call_objects(reader: CallReader, char: str) -> Generator[None, str, None]:
    """Reads one call object, or a list of them; `char` is the first character."""
    if char != "[":
        yield from call_object(reader, char)
        return
    while True:
        char = yield from after_space((yield))
        yield from call_object(reader, char)
        reader.may_end = False  # inside the list
        char = yield from after_space((yield))
        if char == "]":
            reader.may_end = True
            return
        if char != ",":
            raise Malformed(f"expected a comma or the end of the list of calls, got {char!r}")


def closing(reader: CallReader) -> Steps:
    """Reads the closing tag after white space and surplus braces, and any further call objects before it; returns the
    text read if something else follows."""
    read = ""
    while True:
        read += yield
        tag = read.lstrip(" \t\r\n}")
        if tag == CLOSE:
            return ""
        if tag == "{":
            yield from call_object(reader, tag)
            read = ""
        elif not CLOSE.startswith(tag):
            return read


def call_object(reader: CallReader, char: str) -> Generator[None, str, None]:
    """Reads {"name": ..., "arguments": {...}}, keys in either order; `char` is the first character."""
    call = _Object(reader)
    yield from call.read(char)
    call.end()


_KEYS = frozenset({"name", "arguments", "parameters", "function", "type", "id"})


class _Object:
    """Reads one call object. Arguments that precede the name are withheld until the name is known. Their last brace is
    withheld until the object ends, so the arguments of a truncated call are never valid JSON."""

    def __init__(self, reader: CallReader) -> None:
        self._reader = reader
        self._name: str | None = None
        self._early = ""
        self._last = "{}"  # of the arguments
        self._has_arguments = False

    def end(self) -> None:
        if self._name is None:
            raise Malformed("the call has no name")
        self._reader.give(self._last)
        self._reader.end()

    def read(self, char: str) -> Generator[None, str, None]:
        yield from literal("{", char)
        char = yield from after_space((yield))
        while True:
            key = yield from _string(char)
            if key not in _KEYS:
                raise Malformed(f"a call has no {key[:100]!r}")
            char = yield from after_space((yield))
            yield from literal(":", char)
            char = yield from after_space((yield))
            char = yield from self._value(key, char)
            char = yield from after_space(char)
            if char == "}":
                return
            yield from literal(",", char)
            char = yield from after_space((yield))

    def _value(self, key: str, char: str) -> Generator[None, str, str]:
        """Reads the value of a key; returns the character after it."""
        if key == "function" and char == "{":
            yield from self.read(char)
            return (yield)
        if key == "name" or (key == "function" and char == '"'):
            self._begin((yield from _string(char)))
            return (yield)
        if key in ("arguments", "parameters"):
            return (yield from self._arguments(char))
        return (yield from _whole(char, []))

    def _begin(self, name: str) -> None:
        if self._name is not None:
            raise Malformed("the call has two names")
        self._reader.begin(name)
        self._name = name
        self._reader.give(self._early)

    def _give(self, text: str) -> None:
        if self._name is None:
            self._early += text
        else:
            self._reader.give(text)

    def _arguments(self, char: str) -> Generator[None, str, str]:
        if self._has_arguments:
            raise Malformed("the call has two sets of arguments")
        self._has_arguments = True
        if char != "{":
            text: list[str] = []
            char = yield from _whole(char, text)
            arguments = _object_text("".join(text))
            self._give(arguments[:-1])
            self._last = "}"
            return char
        scanner = JsonScanner()
        while True:
            piece = scanner.push(char) or ""
            if scanner.done:
                self._last = piece
                return (yield)
            self._give(piece)
            char = yield


def _object_text(text: str) -> str:
    """The JSON of arguments that are not an object: a string that contains one, or null."""
    if text == "null":
        return "{}"
    if not text.startswith('"'):
        raise Malformed("the arguments are not an object")
    inside = str(json.loads(text)).strip()
    if not inside:
        return "{}"
    scanner = JsonScanner()
    pieces = [scanner.push(char) for char in inside]
    scanner.finish()
    if not inside.startswith("{"):
        raise Malformed("the arguments are not an object")
    return "".join(filter(None, pieces)).rstrip()


def _whole(char: str, text: list[str]) -> Generator[None, str, str]:
    """Reads any JSON value, appending it to `text`; returns the character after it."""
    scanner = JsonScanner()
    while (piece := scanner.push(char)) is not None:
        text.append(piece)
        char = yield
        if scanner.done:
            break
    return char


def _string(char: str) -> Generator[None, str, str]:
    """Reads and decodes a JSON string. Stops at the closing quote and consumes nothing after it."""
    if char != '"':
        raise Malformed(f"expected a string, got {char!r}")
    scanner, text = JsonScanner(), ""
    while True:
        text += scanner.push(char) or ""
        if scanner.done:
            return str(json.loads(text))
        char = yield
