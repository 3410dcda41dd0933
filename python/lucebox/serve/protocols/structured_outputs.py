"""vLLM's fields for structured output: `guided_*`, and `structured_outputs` of later versions."""

from __future__ import annotations

import json
from typing import Any

from pydantic import Field

from lucebox.chat.conversation import AnswerFormat
from lucebox.errors import InvalidRequestError
from lucebox.serve.errors import ApiError
from lucebox.serve.protocols.body import Body, Ignored, Many
from lucebox.text.large_json import load_json

__all__ = ["Guided", "grammar_format", "guided_format"]

MAX_SCHEMA = 1 << 20
"""Characters of a schema's text."""

Choices = Many[str]


class StructuredOutputs(Body):
    json_: dict[str, Any] | str | None = Field(None, alias="json", description="A JSON schema, or its text.")
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = Field(None, description="Lark or GBNF.")
    json_object: bool | None = None
    disable_any_whitespace: Ignored = None
    whitespace_pattern: Ignored = None


class Guided(Body):
    """The fields, of which a request may have one."""

    guided_json: dict[str, Any] | str | None = Field(None, description="A JSON schema, or its text.")
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = Field(None, description="Lark or GBNF.")
    structured_outputs: StructuredOutputs | None = None
    guided_decoding_backend: Ignored = None
    guided_whitespace_pattern: Ignored = None


def guided_format(body: Guided, other: AnswerFormat | None = None) -> AnswerFormat | None:
    """The answer's format; `other` is the format from the protocol's own field.

    Raises:
        ApiError: there are several formats, or one is malformed.
    """
    later = body.structured_outputs or StructuredOutputs.model_validate({})
    found = [] if other is None else [other]
    for prefix, json_, regex, choice, grammar in (
        ("guided_", body.guided_json, body.guided_regex, body.guided_choice, body.guided_grammar),
        ("structured_outputs.", later.json_, later.regex, later.choice, later.grammar),
    ):
        if json_ is not None:
            found.append(AnswerFormat("json_schema", _schema(json_, f"{prefix}json")))
        if regex is not None:
            found.append(AnswerFormat("regex", text=regex))
        if choice is not None:
            found.append(AnswerFormat("grammar", text=_choice(choice, f"{prefix}choice")))
        if grammar is not None:
            found.append(grammar_format(grammar))
    if later.json_object:
        found.append(AnswerFormat("json_object"))
    if len(found) > 1:
        raise ApiError("invalid", "the form of the answer is given more than once")
    return found[0] if found else None


def _schema(given: dict[str, Any] | str, field: str) -> dict[str, Any]:
    if isinstance(given, dict):
        return given
    if len(given) > MAX_SCHEMA:
        raise ApiError("invalid", f"it has {len(given)} characters, more than {MAX_SCHEMA}", field)
    try:
        schema = load_json(given.encode("utf-8", "replace"), "it")
    except InvalidRequestError as error:
        raise ApiError("invalid", str(error), field) from None
    except (ValueError, RecursionError) as error:
        raise ApiError("invalid", f"it is not JSON: {error}", field) from None
    if not isinstance(schema, dict):
        raise ApiError("invalid", "it is not a JSON schema", field)
    return schema


def _choice(texts: Choices, field: str) -> str:
    if not texts or not all(texts):
        raise ApiError("invalid", "expected a list of texts, none of them empty", field)
    return "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)


def grammar_format(grammar: str) -> AnswerFormat:
    """The format of a grammar in Lark or GBNF."""
    return AnswerFormat("gbnf" if "::=" in grammar else "grammar", text=grammar)
