"""Adapts a conversation to the model's chat template: system messages, and tools for templates without tool support.

All protocols convert to one form, OpenAI's: role, content as text, tool_calls, tool_call_id, reasoning_content.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from lucebox.chat.dialects import DIALECTS, Dialect
from lucebox.chat.profiles import Profile
from lucebox.text.large_json import load_json

__all__ = ["Message", "for_template", "with_broken_calls", "with_text"]

Message: TypeAlias = dict[str, Any]


def for_template(
    profile: Profile, messages: Sequence[Message], tools: list[dict[str, Any]]
) -> tuple[list[Message], list[dict[str, Any]] | None]:
    """The messages and tools to render, from checked messages and tools in OpenAI's form.

    A longer conversation renders to a longer prompt with the same prefix, unless the template changes earlier turns.
    """
    result = merged_system(messages, takes_late=profile.takes_late_system)
    if (converted := DIALECTS[profile.dialect].for_template) is not None:
        result = converted(result)
    own_tools = profile.takes_tools or not tools  # the template renders the tools, or there are none
    if own_tools and (profile.takes_calls_with_tools if tools else profile.takes_calls):
        return result, tools or None
    text = _tools_as_text(result, [] if own_tools else tools, DIALECTS[profile.dialect])
    return text, (tools or None) if own_tools else None


def with_broken_calls(profile: Profile, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Runs before the messages are checked. If arguments in an earlier turn are not a JSON object, that turn's calls
    become text in the model's dialect, because templates accept only objects as arguments."""
    if not isinstance(messages, Sequence):
        return messages
    return [
        _with_calls(message, DIALECTS[profile.dialect])
        if any(isinstance(_arguments(call), str) for call in _calls_of(message))
        else message
        for message in messages
    ]


def _calls_of(message: Any) -> list[Mapping[str, Any]]:
    """The calls of a message; none if one is malformed, which the later check of the messages reports."""
    calls = message.get("tool_calls") if isinstance(message, Mapping) else None
    if not isinstance(calls, Sequence) or not all(isinstance(call, Mapping) for call in calls):
        return []
    functions = [call.get("function", call) for call in calls]
    is_right = all(isinstance(f, Mapping) and isinstance(f.get("name"), str) for f in functions)
    return list(calls) if is_right and isinstance(message.get("content") or "", str) else []


def _arguments(call: Mapping[str, Any]) -> Mapping[str, Any] | str:
    """The arguments of a call: an object, or their text if it is no object."""
    arguments = call.get("function", call).get("arguments")
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        value = load_json(arguments.encode("utf-8", "surrogatepass"), "arguments") if arguments.strip() else {}
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def merged_system(messages: Sequence[Message], *, takes_late: bool) -> list[Message]:
    """Merges the system and developer messages at the head into one.

    Later ones stay in place, because moving them to the head would invalidate the cached prefix. If the template
    refuses late system messages, they join the tool result before them, else they become user messages.
    """
    head: list[str] = []
    rest: list[Message] = []
    for message in messages:
        if message["role"] not in ("system", "developer"):
            rest.append(message)
        elif not rest:
            head.append(message["content"])
        elif takes_late:
            rest.append({**message, "role": "system"})
        elif rest[-1]["role"] == "tool":
            rest[-1] = with_text(rest[-1], message["content"])
        else:
            rest.append({**message, "role": "user"})
    return [{"role": "system", "content": "\n\n".join(filter(None, head))}, *rest] if head else rest


def with_text(result: Message, text: str) -> Message:
    """A tool result with text that follows it in the same turn. As a user message, the text would be a new question:
    templates then drop the thinking of the running tool loop, and the cached prefix ends there."""
    return {**result, "content": "\n\n".join(filter(None, (result["content"], text)))}


def _tools_as_text(messages: Sequence[Message], tools: list[dict[str, Any]], dialect: Dialect) -> list[Message]:
    """For a template without tool support: the tools in the system message, calls and results as text."""
    result: list[Message] = []
    in_results = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result:
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if in_results:
                result[-1]["content"] += "\n" + text
            else:
                result.append({"role": "user", "content": text})
        elif message.get("tool_calls"):
            result.append(_with_calls(message, dialect))
        else:
            result.append(dict(message))
        in_results = is_result
    if not tools:
        return result
    preamble = _preamble(tools, dialect)
    if result and result[0]["role"] == "system":
        return [{**result[0], "content": f"{result[0]['content']}\n\n{preamble}".lstrip()}, *result[1:]]
    return [{"role": "system", "content": preamble}, *result]


def _with_calls(message: Mapping[str, Any], dialect: Dialect) -> Message:
    calls = []
    for call in message["tool_calls"]:
        name, arguments = call.get("function", call)["name"], _arguments(call)
        if isinstance(arguments, str):
            calls.append(dialect.render_broken(name, arguments))
        else:
            calls.append(dialect.render_call(name, arguments))
    text = "\n".join(calls)
    before = (message.get("content") or "").rstrip()
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": f"{before}\n\n{text}" if before else text}


def _preamble(tools: list[dict[str, Any]], dialect: Dialect) -> str:
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    example = dialect.render_call("function_name", {"argument_name": "value"})
    return (
        f"You may call functions. These are their signatures:\n<tools>\n{lines}\n</tools>\n\n"
        f"To call one, write its name and arguments in this form, and nothing after it:\n{example}\n\n"
        "What it returned will be given to you as <tool_response>."
    )
