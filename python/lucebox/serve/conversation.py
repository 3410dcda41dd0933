"""The protocol-independent form of a conversation. rendering.py defines the form of its messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lucebox.serve.rendering import Message
from lucebox.serve.thinking import ThinkingRequest
from lucebox.serve.tools import Tool, ToolChoice

__all__ = ["AnswerFormat", "Conversation"]


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The structured output a request asks for."""

    kind: Literal["json_object", "json_schema", "regex", "grammar"]
    schema: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    """The regular expression or grammar."""


@dataclass(slots=True)
class Conversation:
    """A conversation to answer, with its tools and constraints."""

    messages: list[Message]
    tools: list[Tool] = field(default_factory=list)
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    thinking: ThinkingRequest = field(default_factory=ThinkingRequest)
    answer_format: AnswerFormat | None = None
    template_vars: dict[str, Any] = field(default_factory=dict)
