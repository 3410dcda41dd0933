"""Adapts schemas to llguidance: keywords that it cannot enforce are relaxed, and a warning names them.

A strict schema is refused if it has a pattern that cannot be compiled. Other unsupported keywords (uniqueItems, not,
unknown formats) are relaxed in strict schemas too, because OpenAI's clients send them everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from lucebox.chat.constraints import json_grammar, regex_grammar
from lucebox.chat.conversation import AnswerFormat
from lucebox.chat.dialects import Dialect
from lucebox.chat.grammar_check import GrammarCheck, check_size
from lucebox.chat.tools import Tool
from lucebox.errors import InvalidRequestError

__all__ = ["held_format", "held_schema", "held_tools"]

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_URI = "%#/?:@!$&'()*+,;=~[]"  # characters that references leave unquoted; some makers leave others unquoted as well
_VALUES = ("const", "default", "enum", "examples")


def held_tools(check: GrammarCheck, tools: Sequence[Tool], dialect: Dialect) -> tuple[list[Tool], list[str]]:
    """The tools with schemas that a dialect's calls can enforce, and warnings.

    Raises:
        InvalidRequestError: a schema is invalid, or a strict one cannot be enforced; the message names the tool.
    """
    held, warnings = [], []
    for tool in tools:
        owner = f"the tool {tool.name!r}"
        schema, notes = held_schema(check, tool.parameters, owner, must_hold=tool.strict)
        if keywords := dialect.unheld(schema):
            notes.append(_note(owner, f"{', '.join(keywords)} of text in tags"))
        held.append(replace(tool, parameters=schema if _joins(schema) else _closed(schema)))
        warnings += notes
    return held, warnings


def held_format(check: GrammarCheck, answer_format: AnswerFormat) -> tuple[AnswerFormat, list[str]]:
    """The format with a schema that can be enforced, and warnings.

    Raises:
        InvalidRequestError: as held_schema.
    """
    if answer_format.kind == "gbnf":
        return AnswerFormat("grammar", text=check.lark_of(answer_format.text)), []
    if answer_format.kind != "json_schema":
        return answer_format, []
    is_strict = answer_format.is_strict
    schema, warnings = held_schema(check, answer_format.schema, "the response format", must_hold=is_strict)
    return replace(answer_format, schema=schema), warnings


def held_schema(
    check: GrammarCheck, schema: Mapping[str, Any], owner: str, *, must_hold: bool
) -> tuple[dict[str, Any], list[str]]:
    """A schema that can be enforced, and warnings that name its owner and the keywords that are not enforced.

    Raises:
        InvalidRequestError: the schema is invalid, exceeds a limit of the check, or is strict and has a pattern that
            cannot be compiled.
    """
    check_size(schema)
    loosened = _Loosened(check, owner, must_hold)
    result: dict[str, Any] = loosened.schema(schema)
    error, messages = check.report(json_grammar(result))
    if error:
        reason = error.splitlines()[0].rpartition("JSON schema: ")[2]
        raise InvalidRequestError(f"the schema of {owner} cannot be held: {reason[:300]}")
    return result, [_note(owner, note) for note in (*loosened.notes, *messages)]


def _note(owner: str, note: str) -> str:
    return f"the schema of {owner} is not held in full: {note}"


def _joins(schema: Any) -> bool:
    """Whether the schema combines objects (`allOf`), so that closing each would refuse the other's properties."""
    if isinstance(schema, list):
        return any(map(_joins, schema))
    if not isinstance(schema, Mapping):
        return False
    parts = schema.get("allOf")
    return (isinstance(parts, list) and len(parts) > 1) or any(map(_joins, schema.values()))


def _closed(schema: Any) -> Any:
    """The schema with additionalProperties false in its objects: an open object could repeat a key, or never end."""
    if not isinstance(schema, Mapping):
        return schema
    result = {
        key: value
        if key in _VALUES
        else {name: _closed(part) for name, part in value.items()}
        if key in _MAPS and isinstance(value, Mapping)
        else [_closed(part) for part in value]
        if key in _LISTS and isinstance(value, list)
        else _closed(value)
        for key, value in schema.items()
    }
    is_plain = not any(key in schema for key in ("$ref", "allOf", "anyOf", "oneOf", "patternProperties"))
    if is_plain and schema.get("properties") and schema.get("additionalProperties", True) is True:
        result["additionalProperties"] = False
    return result


class _Loosened:
    def __init__(self, check: GrammarCheck, owner: str, must_hold: bool) -> None:
        self._check = check
        self.notes: list[str] = []
        self._owner = owner
        self._must_hold = must_hold

    def schema(self, schema: Any) -> Any:
        """The schema without null keywords, which mean "absent", and without patterns that cannot be compiled."""
        if not isinstance(schema, Mapping):
            return schema
        result: dict[str, Any] = {}
        for key, value in schema.items():
            if key in _VALUES:
                result[key] = value
            elif key in _MAPS and isinstance(value, Mapping):
                result[key] = {name: self.schema(part) for name, part in value.items()}
            elif key in _LISTS and isinstance(value, list):
                result[key] = [self.schema(part) for part in value]
            elif key == "$ref" and isinstance(value, str):
                result[key] = quote(value, safe=_URI)
            elif key == "pattern" and isinstance(value, str):
                if self._holds(value):
                    result[key] = value
            elif value is not None:
                result[key] = self.schema(value)
        return result

    def _holds(self, pattern: str) -> bool:
        report, _ = self._check.report(regex_grammar(pattern))
        if not report:
            return True
        error = next((line for line in report.splitlines() if line.startswith("error: ")), "error: it is invalid")
        reason = f"the pattern {json.dumps(pattern)[:200]}: {error.removeprefix('error: ')}"
        if self._must_hold:
            raise InvalidRequestError(f"the schema of {self._owner} is strict, but cannot be held: {reason}")
        self.notes.append(reason)
        return False
