"""Tool-call dialects. Each file has the opening tags, a reader, a grammar, and a renderer for calls of earlier turns.

The renderer is used only if the chat template cannot write calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from lucebox.chat.dialects import gemma4, harmony, hermes_json, llama_json, mistral, qwen_xml
from lucebox.chat.dialects.reader import CallReader
from lucebox.chat.dialects.text_values import unheld_keywords
from lucebox.chat.tools import Tool

__all__ = ["DIALECTS", "Dialect", "dialect_of"]

ReaderType = Callable[[Mapping[str, Mapping[str, Any]]], CallReader]


class _Grammar(Protocol):
    def __call__(self, tools: Sequence[Tool], *, parallel: bool) -> str: ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """A model family's format of tool calls."""

    name: str
    openers: Mapping[str, ReaderType]
    """Opening tags, and the reader of the text after each."""
    first: Mapping[str, ReaderType]
    """Openers that count only at the beginning of the answer. The reader gets the opener's text too."""
    grammar: _Grammar | None
    """Makes the Lark grammar for calls of some tools; None: no grammar can hold them."""
    unheld: Callable[[Mapping[str, Any]], Sequence[str]]
    """Schema keywords of a tool's parameters that this grammar does not enforce."""
    render_call: Callable[[str, Mapping[str, Any]], str]
    """The text of a call, from its name and arguments."""
    render_begun: Callable[[str], str]
    """The text of a call up to its name."""
    render_broken: Callable[[str, str], str]
    """The text of a call that broke off, from its name and the JSON text of its arguments so far."""
    for_template: Callable[[Sequence[Mapping[str, Any]]], list[dict[str, Any]]] | None = None
    """Converts messages to the form that the format's templates take; None: they take all messages."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Rules of the grammar that are one tag each, and the tag: a control token in most vocabularies."""
    close: str = hermes_json.CLOSE
    """The tag to which a call is free if its tool is not strict; empty: the arguments of such a call are any object."""


DIALECTS: Mapping[str, Dialect] = {
    "qwen_xml": Dialect(
        "qwen_xml",
        {qwen_xml.OPEN: qwen_xml.XmlReader, qwen_xml.BARE_OPEN: qwen_xml.BareXmlReader},
        {},
        qwen_xml.grammar,
        unheld_keywords,
        qwen_xml.render_call,
        qwen_xml.render_begun,
        qwen_xml.render_broken,
    ),
    "hermes_json": Dialect(
        "hermes_json",
        {hermes_json.OPEN: hermes_json.HermesReader},
        {},
        hermes_json.grammar,
        lambda parameters: (),
        hermes_json.render_call,
        hermes_json.render_begun,
        hermes_json.render_broken,
    ),
    "llama_json": Dialect(
        "llama_json",
        {llama_json.OPEN: llama_json.LlamaReader},
        {llama_json.BARE_OPEN: llama_json.LlamaReader},
        llama_json.grammar,
        lambda parameters: (),
        llama_json.render_call,
        llama_json.render_begun,
        llama_json.render_broken,
    ),
    "harmony": Dialect(
        "harmony",
        {},
        {},
        None,
        lambda parameters: (),
        harmony.render_call,
        harmony.render_begun,
        harmony.render_broken,
        harmony.one_call_each,
    ),
    "mistral": Dialect(
        "mistral",
        {mistral.OPEN: mistral.MistralReader},
        {},
        mistral.grammar,
        lambda parameters: (),
        mistral.render_call,
        mistral.render_begun,
        mistral.render_broken,
        tags={"tag_open": mistral.OPEN, "tag_args": mistral.ARGS},
        close="",
    ),
    "gemma4": Dialect(
        "gemma4",
        {gemma4.OPEN: gemma4.Gemma4Reader},
        {},
        gemma4.grammar,
        gemma4.unheld_keywords,
        gemma4.render_call,
        gemma4.render_begun,
        gemma4.render_broken,
        tags=gemma4.TAGS,
        close="",
    ),
}


def dialect_of(template: str) -> str:
    """The name of a chat template's dialect; hermes_json if the template has no tool calls."""
    if "<|channel|>" in template and "<|message|>" in template:
        return "harmony"
    if "<function=" in template:
        return "qwen_xml"
    if mistral.OPEN in template:
        return "mistral"
    if gemma4.OPEN in template:
        return "gemma4"
    if "<tool_call>" not in template and ("<|python_tag|>" in template or '"parameters": ' in template):
        return "llama_json"
    return "hermes_json"
