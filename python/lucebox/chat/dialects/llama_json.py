"""Calls as bare JSON: Llama 3.1 and its relatives. The whole answer is

    {"name": "f", "parameters": {"a": 1}}

Several calls are separated by semicolons. <|python_tag|> may precede them, and surplus closing braces follow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lucebox.chat.dialects.hermes_json import MAX_CALLS, call_object, object_rule
from lucebox.chat.dialects.reader import CallReader, Steps, after_space
from lucebox.chat.tools import Tool

__all__ = ["BARE_OPEN", "OPEN", "LlamaReader", "grammar", "render_begun", "render_broken", "render_call"]

OPEN = "<|python_tag|>"
BARE_OPEN = "{"
"""Opens a call only at the beginning of the answer."""


class LlamaReader(CallReader):
    """Reads a block from after the tag, or from the bare brace."""

    def _read(self) -> Steps:
        char = yield from after_space((yield))
        while True:
            yield from call_object(self, char)
            read = yield
            while not read.strip(" \t\r\n};"):  # a model may write a brace too many
                read += yield
            char = read[-1]
            if char != "{":
                return read


def render_call(name: str, arguments: Mapping[str, Any]) -> str:
    return json.dumps({"name": name, "parameters": arguments}, ensure_ascii=False)


def render_begun(name: str) -> str:
    """A call of this dialect up to its name."""
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}'


def render_broken(name: str, arguments: str) -> str:
    """A call of this dialect that broke off inside its arguments."""
    return f'{render_begun(name)}, "parameters": {arguments}'


def grammar(tools: Sequence[Tool], *, parallel: bool) -> str:
    """Lark rules; `calls` is one call, or several if parallel."""
    one = " | ".join(f"call_{i}" for i in range(len(tools)))
    several = f'("; " one){{0,{MAX_CALLS - 1}}}' if parallel else ""
    return "\n".join([
        f"calls: one {several}", f"one: {one}", *(object_rule(i, tool, "parameters") for i, tool in enumerate(tools))
    ])  # fmt: skip
