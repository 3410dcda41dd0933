"""Calls of Mistral's models: a control token before each name and each object of arguments.

    [TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}

The reader also accepts a call's id ([CALL_ID]x before [ARGS]: Mistral Small 3.1, 3.2) and a list of JSON objects after
one [TOOL_CALLS] (Mistral 7B, Nemo).
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from lucebox.chat.dialects.hermes_json import JSON_FORM, MAX_CALLS, arguments_schema, call_objects
from lucebox.chat.dialects.reader import CallReader, Steps, after_space
from lucebox.chat.json_text import JsonScanner, Malformed
from lucebox.chat.tools import Tool

__all__ = [
    "ARGS",
    "OPEN",
    "THINK",
    "THINK_END",
    "MistralReader",
    "grammar",
    "render_begun",
    "render_broken",
    "render_call",
]

OPEN, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
THINK, THINK_END = "[THINK]", "[/THINK]"
_MAX_NAME = 256


class MistralReader(CallReader):
    """Reads a call from after its opening tag."""

    def _read(self) -> Steps:
        char = yield from after_space((yield))
        if char in "[{":
            yield from call_objects(self, char)
            return ""
        name = yield from _name(char)
        self.begin(name)
        char = yield from after_space((yield))
        if char != "{":
            raise Malformed("the arguments are not an object")
        scanner = JsonScanner()
        self.give(scanner.push(char) or "")
        while not scanner.done:
            char = yield
            self.give(scanner.push(char) or "")
        self.end()
        return ""


def _name(char: str) -> Generator[None, str, str]:
    """Reads up to [ARGS]; `char` is the first character."""
    text = char
    while not text.endswith(ARGS):
        if len(text) > _MAX_NAME or char in '\n{"':
            raise Malformed(f"expected a name and {ARGS}")
        char = yield
        text += char
    name = text.removesuffix(ARGS).partition(CALL_ID)[0].strip()
    if not name:
        raise Malformed("the call has no name")
    return name


def render_call(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{render_begun(name)}{json.dumps(arguments, ensure_ascii=False)}"


def render_begun(name: str) -> str:
    """A call of this dialect up to its name, and the tag of its arguments."""
    return f"{OPEN}{name}{ARGS}"


def render_broken(name: str, arguments: str) -> str:
    """A call of this dialect that broke off inside its arguments."""
    return render_begun(name) + arguments


def grammar(tools: Sequence[Tool], *, parallel: bool) -> str:
    """Lark rules; `calls` is one call, or several if parallel."""
    one = " | ".join(f"call_{i}" for i in range(len(tools)))
    rules = [
        f"calls: one{{1,{MAX_CALLS}}}" if parallel else "calls: one",
        f"one: tag_open ({one})",
        f'tag_open: "{OPEN}"',
        f'tag_args: "{ARGS}"',
    ]
    for i, tool in enumerate(tools):
        schema = {**arguments_schema(tool), "x-guidance": JSON_FORM}
        rules.append(f"call_{i}: {json.dumps(tool.name, ensure_ascii=False)} tag_args %json {json.dumps(schema)}")
    return "\n".join(rules)
