"""The tools of a request and which of them an answer may or must call, whatever protocol they came by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lucebox.errors import InvalidRequestError

__all__ = ["Tool", "ToolChoice", "callable_tools"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may ask for."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of the object of arguments; none by default."""
    strict: bool = False
    """Calls must follow the schema also where the model is free not to call."""

    def for_template(self) -> dict[str, Any]:
        """The form chat templates expect."""
        function: dict[str, Any] = {"name": self.name}
        if self.description:
            function["description"] = self.description
        return {"type": "function", "function": {**function, "parameters": dict(self.parameters)}}


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """What the caller asks for."""

    mode: Literal["none", "auto", "required"] = "auto"
    names: tuple[str, ...] = ()
    """The only tools that may be called; empty: all."""
    parallel: bool = True
    """More than one call in an answer."""


def callable_tools(tools: Sequence[Tool], choice: ToolChoice) -> list[Tool]:
    """Those that the answer may call.

    Raises:
        InvalidRequestError: the choice names a tool that there is not, or there is none to choose from.
    """
    known = {tool.name for tool in tools}
    if missing := [name for name in choice.names if name not in known]:
        raise InvalidRequestError(f"tool_choice names {missing[0]!r}, which is not among the tools")
    if choice.mode == "required" and not tools:
        raise InvalidRequestError("tool_choice asks for a call, but there are no tools")
    if choice.mode == "none":
        return []
    return [tool for tool in tools if not choice.names or tool.name in choice.names]
