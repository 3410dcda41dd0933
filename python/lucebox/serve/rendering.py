"""A conversation in OpenAI's form to the messages and tools that the model's own chat template is given.

All protocols are brought to that form: role, content as text, tool_calls, tool_call_id, reasoning_content. Here it
becomes what this template can write: system messages where it takes them, and tools also where it knows of none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

from lucebox.serve.dialects import DIALECTS, Dialect
from lucebox.serve.profiles import Profile

__all__ = ["Message", "for_template"]

Message: TypeAlias = dict[str, Any]


def for_template(
    profile: Profile, messages: Sequence[Message], tools: list[dict[str, Any]]
) -> tuple[list[Message], list[dict[str, Any]] | None]:
    """The messages and tools to render, of checked messages and tools in OpenAI's form. A conversation that goes on
    renders to a prompt that goes on, but for what the template itself changes."""
    result = placed_system(messages, takes_late=profile.takes_late_system)
    if profile.takes_tools:
        return result, tools or None
    return _written_out(result, tools, DIALECTS[profile.dialect]), None


def placed_system(messages: Sequence[Message], *, takes_late: bool) -> list[Message]:
    """System (and developer) messages at the head become one. Later ones stay in their place, as the user's where the
    template refuses them there: moved to the head, they would change what has been computed already."""
    head: list[str] = []
    rest: list[Message] = []
    for message in messages:
        if message["role"] not in ("system", "developer"):
            rest.append(message)
        elif not rest:
            head.append(message["content"])
        else:
            rest.append({**message, "role": "system" if takes_late else "user"})
    return [{"role": "system", "content": "\n\n".join(filter(None, head))}, *rest] if head else rest


def _written_out(messages: Sequence[Message], tools: list[dict[str, Any]], dialect: Dialect) -> list[Message]:
    """For a template that knows of no tools: their list in the system message, calls and results as text."""
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


def _with_calls(message: Message, dialect: Dialect) -> Message:
    calls = []
    for call in message["tool_calls"]:
        function = call.get("function", call)
        calls.append(dialect.written(function["name"], function.get("arguments") or {}))
    text = "\n".join(calls)
    before = message["content"].rstrip()
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": f"{before}\n\n{text}" if before else text}


def _preamble(tools: list[dict[str, Any]], dialect: Dialect) -> str:
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    example = dialect.written("function_name", {"argument_name": "value"})
    return (
        f"You may call functions. These are their signatures:\n<tools>\n{lines}\n</tools>\n\n"
        f"To call one, write its name and arguments in this form, and nothing after it:\n{example}\n\n"
        "What it returned will be given to you as <tool_response>."
    )
