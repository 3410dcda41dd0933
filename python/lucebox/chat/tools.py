"""The tools of a request and its tool choice. Independent of the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lucebox.errors import InvalidRequestError

__all__ = ["Tool", "ToolChoice", "callable_tools"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of the arguments object; by default no arguments."""
    strict: bool = False
    """Constrain calls to the schema even if the model need not call."""
    given: Mapping[str, Any] | None = field(default=None, compare=False)
    """The tool in OpenAI's form as the caller gave it; None: the caller has another form."""

    def for_template(self) -> dict[str, Any]:
        """The tool in the form that chat templates expect: as it was given, with keys and order of its own."""
        if self.given is not None:
            return dict(self.given)
        function: dict[str, Any] = {"name": self.name}
        if self.description:
            function["description"] = self.description
        return {"type": "function", "function": {**function, "parameters": dict(self.parameters)}}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the answer may or must call tools."""

    mode: Literal["none", "auto", "required"] = "auto"
    names: tuple[str, ...] = ()
    """The allowed tools; empty allows all."""
    parallel: bool = True
    """Allow more than one call in an answer."""


def callable_tools(tools: Sequence[Tool], choice: ToolChoice) -> list[Tool]:
    """The tools that the answer may call.

    Raises:
        InvalidRequestError: the choice names an unknown tool, or requires a call without any tools.
    """
    known = {tool.name for tool in tools}
    if missing := [name for name in choice.names if name not in known]:
        raise InvalidRequestError(f"tool_choice names {missing[0]!r}, which is not among the tools")
    if choice.mode == "required" and not tools:
        raise InvalidRequestError("tool_choice requires a call, but there are no tools")
    if choice.mode == "none":
        return []
    return [tool for tool in tools if not choice.names or tool.name in choice.names]
