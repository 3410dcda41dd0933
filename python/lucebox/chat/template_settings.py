"""The keywords of a chat that its template reads: thinking, effort, and further variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lucebox.chat.conversation_to_request import ChatModel
from lucebox.chat.thinking import EFFORTS, ThinkingRequest
from lucebox.errors import InvalidRequestError, UnsupportedError

__all__ = ["TemplateSettings"]


@dataclass(frozen=True, slots=True)
class TemplateSettings:
    """The keywords as the caller gave them."""

    enable_thinking: bool | None
    reasoning_effort: str | None
    chat_template_kwargs: Mapping[str, Any] | None

    def read(self, model: ChatModel, name: str) -> tuple[ThinkingRequest, dict[str, Any]]:
        """The request's thinking, and further variables of the template. name: the model's, for errors.

        Raises:
            InvalidRequestError: a value is of another type, or two contradict each other.
            UnsupportedError: the template cannot switch thinking, or takes no effort.
        """
        variables = self._variables()
        on = self._switch(variables.pop("enable_thinking", None))
        effort, thinking = self.reasoning_effort, model.profile.thinking
        if effort not in (None, "none") and thinking is None and not model.profile.effort_levels:
            raise UnsupportedError(f"the chat template of {name} takes no reasoning_effort")
        if on is not None and (thinking is None or thinking.variable is None):
            source = "" if model.template is None else "".join(model.template.sources.values())
            if "enable_thinking" in source:
                variables["enable_thinking"] = on
            elif (on or thinking is not None) and "none" not in model.profile.effort_levels:
                raise UnsupportedError(f"the chat template of {name} cannot switch thinking {'on' if on else 'off'}")
        mode = "default" if on is None else "on" if on else "off"
        return ThinkingRequest(mode, None if effort == "none" else effort), variables  # type: ignore[arg-type]

    def _variables(self) -> dict[str, Any]:
        given = self.chat_template_kwargs
        if given is None:
            return {}
        if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
            raise InvalidRequestError(f"chat_template_kwargs is {given!r}, expected variables by their names")
        return dict(given)

    def _switch(self, variable: object) -> bool | None:
        """Whether to think, which three keywords can say; None: none of them does."""
        effort = self.reasoning_effort
        if effort is not None and effort not in ("none", *EFFORTS):
            raise InvalidRequestError(f"reasoning_effort is {effort!r}, expected none, {', '.join(EFFORTS)}")
        given = [
            ("enable_thinking", self.enable_thinking),
            ("chat_template_kwargs.enable_thinking", variable),
            ("reasoning_effort none", False if effort == "none" else None),
        ]
        said = [(name, value) for name, value in given if value is not None]
        for name, value in said:
            if not isinstance(value, bool):
                raise InvalidRequestError(f"{name} is {value!r}, expected true or false")
            if value != said[0][1]:
                raise InvalidRequestError(f"{said[0][0]} and {name} contradict each other")
        return bool(said[0][1]) if said else None
