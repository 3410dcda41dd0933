"""The forms in which models write tool calls. One file each: how calls open, a reader, a grammar, and how calls of
earlier turns are written where the model's template cannot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lucebox.serve.dialects import hermes_json, llama_json, qwen_xml
from lucebox.serve.dialects.reader import CallReader
from lucebox.serve.tools import Tool

__all__ = ["DIALECTS", "Dialect", "dialect_of"]

ReaderType = Callable[[Mapping[str, Mapping[str, Any]]], CallReader]


class _Grammar(Protocol):
    def __call__(self, tools: Sequence[Tool], *, parallel: bool) -> str: ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """One form of calls."""

    name: str
    openers: Mapping[str, ReaderType]
    """The text with which calls begin, and what reads on from there."""
    first: Mapping[str, ReaderType]
    """The same for texts that begin a call only where nothing stands before them; they are read again."""
    grammar: _Grammar
    written: Callable[[str, Mapping[str, Any]], str]


DIALECTS: Mapping[str, Dialect] = {
    "qwen_xml": Dialect(
        "qwen_xml",
        {qwen_xml.OPEN: qwen_xml.XmlReader, qwen_xml.BARE_OPEN: qwen_xml.BareXmlReader},
        {},
        qwen_xml.grammar,
        qwen_xml.written,
    ),
    "hermes_json": Dialect(
        "hermes_json", {hermes_json.OPEN: hermes_json.HermesReader}, {}, hermes_json.grammar, hermes_json.written
    ),
    "llama_json": Dialect(
        "llama_json",
        {llama_json.OPEN: llama_json.LlamaReader},
        {llama_json.BARE_OPEN: llama_json.LlamaReader},
        llama_json.grammar,
        llama_json.written,
    ),
}


def dialect_of(template: str) -> str:
    """The name of the dialect that a chat template teaches, hermes_json where it teaches none."""
    if "<function=" in template:
        return "qwen_xml"
    if "<tool_call>" not in template and ("<|python_tag|>" in template or '"parameters": ' in template):
        return "llama_json"
    return "hermes_json"
