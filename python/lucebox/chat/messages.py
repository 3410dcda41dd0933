"""Checks a caller's messages and tools, and normalises them for chat templates."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from lucebox.errors import InvalidRequestError
from lucebox.text.large_json import load_json

__all__ = ["Arguments", "NoText", "checked_messages", "checked_tools"]

_ROLE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


def checked_messages(messages: object, *, keeps_broken: bool = False) -> list[dict[str, object]]:
    """The messages, with content as one string and tool-call arguments as objects; other keys unchanged.

    keeps_broken: arguments whose text is not a JSON object stay text. Else they are malformed.

    Raises:
        InvalidRequestError: a message is malformed; the text names it.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise InvalidRequestError(f"messages is {type(messages).__name__}, expected a list of objects")
    if not messages:
        raise InvalidRequestError("messages is empty, expected at least one message")
    return [_message(message, f"messages[{i}]", keeps_broken) for i, message in enumerate(messages)]


def checked_tools(tools: object) -> list[dict[str, object]]:
    """The tools, as dicts.

    Raises:
        InvalidRequestError: a tool is not an object; the text names it.
    """
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise InvalidRequestError(f"tools is {type(tools).__name__}, expected a list of objects")
    for i, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise InvalidRequestError(f"tools[{i}] is {type(tool).__name__}, expected an object")
    return [dict(tool) for tool in tools]


def _message(message: object, name: str, keeps_broken: bool) -> dict[str, object]:
    if not isinstance(message, Mapping):
        raise InvalidRequestError(f"{name} is {type(message).__name__}, expected an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise InvalidRequestError(f"{name}.role is {role!r}, expected system, user, assistant, tool or another name")
    # Clients write null for absent fields; a template that asks `is defined` must not find them.
    result = {key: value for key, value in message.items() if value is not None}
    calls = result.pop("tool_calls", None)
    if calls:
        result["tool_calls"] = _tool_calls(calls, f"{name}.tool_calls", keeps_broken)
    if "content" not in result and not calls and "reasoning_content" not in result:
        raise InvalidRequestError(f"{name}.content is missing, expected text")
    result["content"] = _text(result.get("content"), f"{name}.content")
    return result


class NoText(str):
    """Null content: equals none in a template's test, and is empty text when printed or joined."""

    __slots__ = ()

    def __new__(cls) -> NoText:
        return super().__new__(cls, "")

    def __eq__(self, other: object) -> bool:
        return other is None or super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


class Arguments(dict[str, object]):
    """The arguments of a tool call: an object if a template iterates over them or applies `tojson`; JSON text, as
    OpenAI's clients send it, if a template prints or joins them."""

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False)

    def __add__(self, text: object) -> str:
        return str(self) + text if isinstance(text, str) else NotImplemented

    def __radd__(self, text: object) -> str:
        return text + str(self) if isinstance(text, str) else NotImplemented


def _text(content: object, name: str) -> str:
    if content is None:
        return NoText()
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise InvalidRequestError(f"{name} is {type(content).__name__}, expected text or a list of text parts")
    parts = []
    for i, part in enumerate(content):
        text = part.get("text") if isinstance(part, Mapping) and part.get("type", "text") == "text" else None
        if not isinstance(text, str):
            kind = repr(part.get("type")) if isinstance(part, Mapping) else type(part).__name__
            raise InvalidRequestError(f"{name}[{i}] is {kind}, expected a part of type 'text' with its text")
        parts.append(text)
    return "".join(parts)


def _tool_calls(calls: object, name: str, keeps_broken: bool) -> list[dict[str, object]]:
    """Tool calls with parsed arguments: OpenAI's clients send JSON text, templates take the object."""
    if not isinstance(calls, Sequence) or isinstance(calls, str | bytes):
        raise InvalidRequestError(f"{name} is {type(calls).__name__}, expected a list of objects")
    result = []
    for i, call in enumerate(calls):
        if not isinstance(call, Mapping):
            raise InvalidRequestError(f"{name}[{i}] is {type(call).__name__}, expected an object")
        copy = dict(call)
        inner = copy.get("function")
        if isinstance(inner, Mapping):
            copy["function"] = _with_parsed_arguments(inner, f"{name}[{i}].function", keeps_broken)
        else:
            copy = _with_parsed_arguments(copy, f"{name}[{i}]", keeps_broken)
        result.append(copy)
    return result


def _with_parsed_arguments(function: Mapping[str, object], name: str, keeps_broken: bool) -> dict[str, object]:
    copy = dict(function)
    if not isinstance(copy.get("name"), str):
        raise InvalidRequestError(f"{name}.name is {copy.get('name')!r}, expected the function's name")
    arguments = copy.get("arguments")
    if isinstance(arguments, str):
        try:
            data = arguments.encode("utf-8", "surrogatepass")
            arguments = load_json(data, f"{name}.arguments") if arguments.strip() else {}
        except InvalidRequestError:
            raise
        except (ValueError, RecursionError) as error:
            if keeps_broken:
                return copy
            raise InvalidRequestError(f"{name}.arguments is not valid JSON: {error}") from None
        if keeps_broken and not isinstance(arguments, Mapping):
            return copy
    if arguments is not None and not isinstance(arguments, Mapping):
        raise InvalidRequestError(f"{name}.arguments is {type(arguments).__name__}, expected an object")
    if arguments is not None:
        copy["arguments"] = Arguments(arguments)
    return copy
