"""The protocol-independent form of a conversation. rendering.py defines the form of its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from lucebox.chat.rendering import Message
from lucebox.chat.thinking import ThinkingRequest
from lucebox.chat.tools import Tool, ToolChoice
from lucebox.compression.policy import CompressionRequest
from lucebox.errors import InvalidRequestError

__all__ = ["AnswerFormat", "Conversation", "answer_format_of", "tool_choice_of", "tools_of"]


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The structured output a request asks for."""

    kind: Literal["json_object", "json_schema", "regex", "grammar", "gbnf"]
    schema: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    """The regular expression, or the grammar in Lark or GBNF."""
    is_strict: bool = False
    """Refuse a schema with a pattern that cannot be held."""


@dataclass(slots=True)
class Conversation:
    """A conversation to answer, with its tools and constraints."""

    messages: list[Message]
    tools: list[Tool] = field(default_factory=list)
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    thinking: ThinkingRequest = field(default_factory=ThinkingRequest)
    answer_format: AnswerFormat | None = None
    template_vars: dict[str, Any] = field(default_factory=dict)
    compression: CompressionRequest | None = None


def answer_format_of(response_format: Mapping[str, Any] | None) -> AnswerFormat | None:
    """OpenAI's response_format as a mapping: {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema":
    {...}}}, and lucebox's {"type": "regex", "regex": "..."} and {"type": "grammar", "grammar": "..."}.

    Raises:
        InvalidRequestError: another form.
    """
    if response_format is None:
        return None
    if not isinstance(response_format, Mapping):
        raise InvalidRequestError(f'response_format is {response_format!r}, expected {{"type": ...}}')
    kind = response_format.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return AnswerFormat("json_object")
    value = response_format.get(kind) if kind in ("json_schema", "regex", "grammar") else None
    if kind == "json_schema" and isinstance(value, Mapping) and isinstance(value.get("schema"), Mapping):
        return AnswerFormat("json_schema", value["schema"], is_strict=value.get("strict") is True)
    if kind == "regex" and isinstance(value, str):
        return AnswerFormat("regex", text=value)
    if kind == "grammar" and isinstance(value, str):
        return AnswerFormat("grammar", text=value)
    raise InvalidRequestError(
        f"response_format has the type {kind!r}, expected text, json_object, json_schema (with json_schema.schema), "
        "regex or grammar (with their text under the same name)"
    )


def tools_of(tools: Sequence[Mapping[str, Any]] | None) -> list[Tool]:
    """Tools in OpenAI's form: {"type": "function", "function": {"name", "description", "parameters", "strict"}}.

    Raises:
        InvalidRequestError: a tool has another form; the message says which.
    """
    found = []
    for i, tool in enumerate(tools or ()):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InvalidRequestError(f'tools[{i}] must be {{"type": "function", "function": {{"name": ...}}}}')
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        if not isinstance(parameters, Mapping):
            raise InvalidRequestError(f"tools[{i}].function.parameters is {type(parameters).__name__}, not a schema")
        description = function.get("description") or ""
        found.append(Tool(function["name"], str(description), parameters, bool(function.get("strict"))))
    return found


def tool_choice_of(choice: str | Mapping[str, Any], *, parallel: bool = True) -> ToolChoice:
    """OpenAI's tool_choice: "auto", "none", "required" or {"type": "function", "function": {"name": ...}}.

    Raises:
        InvalidRequestError: another form.
    """
    if choice in ("auto", "none", "required"):
        return ToolChoice(cast(Literal["auto", "none", "required"], choice), (), parallel)
    function = choice.get("function") if isinstance(choice, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidRequestError(f"tool_choice is {choice!r}, expected auto, none, required or a named function")
    return ToolChoice("required", (function["name"],), parallel)
