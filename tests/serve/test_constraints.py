"""Constraints: the tokens each format allows, and complete answers from random logits."""

from __future__ import annotations

import functools
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import Annotated, Any, Literal

import hostile_bodies as hostile
import httpx
import numpy as np
import pytest
from answers import HELD_DIALECTS, NOTHING, WEATHER, WRITE, parser, read
from engines import open_engine
from lucebox import _engine
from lucebox.chat.constraints import (
    GrammarTokens,
    StrictCalls,
    TokenConstraint,
    json_grammar,
    json_or_tools_grammar,
    regex_grammar,
    tools_grammar,
)
from lucebox.chat.dialects import DIALECTS
from lucebox.chat.dialects.schema_types import forms_of
from lucebox.chat.grammar_work import SECONDS, grammar_work
from lucebox.chat.held_schemas import held_schema, held_tools
from lucebox.chat.profiles import Profile, Thinking
from lucebox.chat.tools import Tool, ToolChoice
from lucebox.errors import InvalidRequestError
from lucebox.generation.events import Constraint
from lucebox.text import Tokenizer
from pydantic import BaseModel, Field, RootModel
from running import Running
from text_data import TINY_HYBRID, small_vocabulary, tiny_tokenizer, vocab_tokenizer

TAGS = Thinking()
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["cat", "dog"]},
        "more": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["name", "age", "kind", "more"],
    "additionalProperties": False,
}


@functools.cache
def tokens() -> GrammarTokens:
    tokenizer = tiny_tokenizer()
    return GrammarTokens(tokenizer, tokenizer.n_vocab + 70, tokenizer.eos_ids)  # like a padded vocabulary


def allows(constraint: Constraint, token: int) -> bool:
    mask = constraint.mask()
    return mask is None or bool(mask[token // 32] >> (token % 32) & 1)


def refused_at(constraint: Constraint, text: str) -> str | None:
    """The rest of a text from its first forbidden token; None if all tokens are allowed."""
    tokenizer = tokens().tokenizer
    ids = tokenizer.encode(text, add_bos=False)
    for n, token in enumerate(ids):
        if not allows(constraint, token):
            return tokenizer.decode(ids[n:], skip_special=False)
        constraint.accept(token)
    return None


def ends(constraint: Constraint) -> bool:
    """Whether the answer may end here."""
    return constraint.done or allows(constraint, tokens().end_ids[0])


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (json_grammar(), ['{"a": [1, {"b": null}], "c": "é\\n"}', "{}"], ["[1]", '{"a":1}', '{"a": 1,}', "text"]),
        (
            json_grammar(PERSON),
            ['{"name": "Tom", "age": 3, "kind": "cat", "more": [true]}'],
            ['{"name": "Tom", "age": 151', '{"age": 3', '{"name": 3', '{"name": "Tom", "age": 3, "kind": "cow"'],
        ),
        (json_grammar({"type": "array", "items": {"type": "integer"}}), ["[1, 2]", "[]"], ['["a"]']),
        (regex_grammar(r"[0-9]{2}/\d\d\/x\."), ["12/34/x."], ["1/2", "12/34/y", "12/34/xx"]),
        (regex_grammar("a\n(b|c)*"), ["a\nbcb", "a\n"], ["ab"]),
        ('start: "ja" | "nein" rest?\nrest: ", danke"', ["ja", "nein", "nein, danke"], ["ja, danke"]),
    ],
)
def test_structured_output(grammar: str, good: list[str], bad: list[str]) -> None:
    for text in good:
        constraint = TokenConstraint(tokens(), grammar)
        assert refused_at(constraint, text) is None and ends(constraint)
    for text in bad:
        assert refused_at(TokenConstraint(tokens(), grammar), text) is not None


def test_done_when_no_token_may_follow() -> None:
    constraint = TokenConstraint(tokens(), json_grammar(PERSON))
    assert not constraint.done
    refused_at(constraint, '{"name": "T", "age": 3, "kind": "dog", "more": []}')
    assert constraint.done
    mask = constraint.mask()
    assert mask is not None
    allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    assert set(allowed.tolist()) <= set(tokens().end_ids)
    constraint.accept(tokens().end_ids[0])
    assert constraint.done


def test_masks_cover_the_padded_vocabulary() -> None:
    mask = TokenConstraint(tokens(), "start: /(?s:.*)/").mask()
    assert mask is not None and mask.dtype == np.uint32 and len(mask) == (tokens().vocab + 31) // 32
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    n_vocab = tokens().tokenizer.n_vocab
    assert bits[:n_vocab].any() and not bits[n_vocab:].any()  # ids without a token are never allowed


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (json_grammar({"type": "objct"}), "Invalid type: objct"),
        (regex_grammar("(a"), "unclosed group"),
        ('start: "a', "the constraint cannot be compiled"),
        ("", "the constraint cannot be compiled"),
    ],
)
def test_invalid_constraints(grammar: str, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(message)):
        TokenConstraint(tokens(), grammar)


def test_a_token_that_the_mask_forbids() -> None:
    constraint = TokenConstraint(tokens(), json_grammar())
    with pytest.raises(InvalidRequestError, match="does not allow this token"):
        constraint.accept(tokens().tokenizer.encode("x", add_bos=False)[0])


# --- after thinking


def test_line_ends_after_thinking_are_bounded() -> None:
    """As templates write them: at most two, in any tokens; then the answer begins."""
    tokenizer = tokens().tokenizer
    line_ends = [tokenizer.encode(text, add_bos=False) for text in ("\n", "\n\n")]
    assert [len(ids) for ids in line_ends] == [1, 1]
    one, two = (ids[0] for ids in line_ends)

    def allowed(*given: int) -> set[int]:
        constraint = TokenConstraint(tokens(), json_grammar(PERSON), thinking=TAGS, prompt_text="<think>\n")
        assert refused_at(constraint, "so</think>") is None
        for token in given:
            constraint.accept(token)
        mask = constraint.mask()
        assert mask is not None
        return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()) & {one, two}

    assert allowed() == {one, two} and allowed(one) == {one}
    assert allowed(two) == allowed(one, one) == set()
    assert allowed(tokenizer.encode("{", add_bos=False)[0]) == set()


@pytest.mark.parametrize("between", ["", "\n", "\n\n"])
def test_thinking_is_free(between: str) -> None:
    constraint = TokenConstraint(tokens(), json_grammar(PERSON), thinking=TAGS, prompt_text="<think>\n")
    assert refused_at(constraint, 'anything, even {"x": 1}\n') is None
    assert constraint.mask() is None and not constraint.done
    assert refused_at(constraint, f"</think>{between}") is None
    assert constraint.mask() is not None
    assert refused_at(constraint, "well") == "well"
    answer = '{"name": "T", "age": 3, "kind": "dog", "more": []}'
    assert refused_at(constraint, answer) is None and constraint.done


@pytest.mark.parametrize("close", ["</think>", "</think>\n", "</think>\n\n"])
def test_white_space_after_thinking_is_bounded(close: str) -> None:
    """At most what templates write, however the tokens divide it."""
    tokenizer = tokens().tokenizer
    (line_end,) = tokenizer.encode("\n", add_bos=False)
    constraint = TokenConstraint(tokens(), json_grammar(PERSON), thinking=TAGS, prompt_text="<think>\n")
    assert refused_at(constraint, f"so{close}") is None
    for _ in range(2 - close.count("\n")):
        assert allows(constraint, line_end)
        constraint.accept(line_end)
    for space in ("\n", "\n\n", " "):
        assert refused_at(constraint, space) == space
    assert refused_at(constraint, '{"name": "T"') is None


def test_thinking_that_the_model_may_begin() -> None:
    """The opening tag is one token; these tokens stand in for such a vocabulary."""
    tags = Thinking("<|im_start|>", "</think>", "</think>")
    for text in ("<|im_start|>so", "{}"):
        constraint = TokenConstraint(tokens(), json_grammar(), thinking=tags, prompt_text="assistant\n")
        assert refused_at(constraint, text) is None
        assert (constraint.mask() is None) == (text != "{}")
    constraint = TokenConstraint(tokens(), json_grammar(), thinking=tags, prompt_text="<|im_start|>\n\n</think>\n\n")
    assert refused_at(constraint, "<|im_start|>") is not None  # the prompt already has an empty thinking block


def test_a_token_that_closes_the_tag_and_continues() -> None:
    tokenizer = tokens().tokenizer
    tags = Thinking(close="}", stop="}")
    joined = next(i for i in range(tokenizer.n_vocab) if tokenizer.token_bytes(i) == b"})")
    constraint = TokenConstraint(tokens(), 'start: ")x"', thinking=tags, prompt_text="<think>")
    constraint.accept(joined)
    assert refused_at(constraint, "x") is None and constraint.done


# --- calls


def calls(dialect: str, **more: Any) -> TokenConstraint:
    choice = ToolChoice("required", **more)
    return TokenConstraint(tokens(), tools_grammar(Profile("x", dialect=dialect), [WEATHER, WRITE, NOTHING], choice))


@pytest.mark.parametrize("dialect", HELD_DIALECTS)
def test_required_calls(dialect: str) -> None:
    write = DIALECTS[dialect].render_call
    full = {"city": 'A "b"\n<c>', "days": 3, "exact": True, "where": None, "tags": ["x", "y"], "note": "n"}
    first, second = write("get_weather", full), write("nothing", {})
    between = {"llama_json": "; ", "mistral": "", "gemma4": ""}.get(dialect, "\n")
    constraint = calls(dialect)
    assert refused_at(constraint, first) is None and ends(constraint) and not constraint.done
    assert refused_at(constraint, between + second) is None and ends(constraint)
    constraint.accept(tokens().end_ids[-1])
    assert constraint.done
    written = dict(sorted(full.items())) if dialect == "gemma4" else full
    assert read(first + between + second, parser(dialect)) == [
        ("call", "get_weather", json.dumps(written)), ("call", "nothing", "{}"),
    ]  # fmt: skip
    for wrong in (
        "Sure. " + first, write("get_time", {}), write("get_weather", {"days": 3}),
        write("get_weather", {"city": "x", "days": "three"}), write("nothing", {"x": 1}),
    ):  # fmt: skip
        assert refused_at(calls(dialect), wrong) is not None
    assert refused_at(calls(dialect, names=("nothing",)), first) is not None
    assert refused_at(calls(dialect, names=("nothing",)), second) is None
    alone = calls(dialect, parallel=False)
    assert refused_at(alone, first) is None and alone.done


def with_tags(kind: int, *tags: str) -> tuple[Tokenizer, GrammarTokens]:
    """A vocabulary with a token of this type for each tag."""
    fields = small_vocabulary()
    texts, types = (list(fields[f"tokenizer.ggml.{key}"]) for key in ("tokens", "token_type"))
    fields |= {
        "tokenizer.ggml.tokens": [*texts, *tags],
        "tokenizer.ggml.token_type": [*types, *[kind] * len(tags)],
    }
    tokenizer = Tokenizer.from_gguf(fields, "x")
    return tokenizer, GrammarTokens(tokenizer, tokenizer.n_vocab, tokenizer.eos_ids)


CONTROL, USER_DEFINED = 3, 4


@pytest.mark.parametrize("kind", [CONTROL, USER_DEFINED])
def test_tags_of_gemma(kind: int) -> None:
    """They are control tokens in a checkpoint, user-defined ones in a GGUF file. The quote of strings is one too."""
    tokenizer, table = with_tags(kind, "<|tool_call>", "<tool_call|>", '<|"|>')
    profile = Profile("x", dialect="gemma4")
    strict = StrictCalls(table, profile, [replace(WEATHER, strict=True), WRITE])
    grammar = tools_grammar(profile, [WEATHER, WRITE], ToolChoice("required", parallel=False))

    def accepts(constraint: Constraint, text: str) -> bool:
        for token in tokenizer.encode(text, add_bos=False):
            if not allows(constraint, token):
                return False
            constraint.accept(token)
        return True

    write = DIALECTS["gemma4"].render_call
    for arguments in ({"city": "a<|b"}, {"city": "", "tags": ["x", "<"], "where": {"at": "y"}}):
        forced = TokenConstraint(table, grammar)
        assert accepts(forced, write("get_weather", arguments)) and forced.done
        assert accepts(strict, "Text " + write("get_weather", arguments)) and strict.mask() is None
    assert accepts(strict, write("write", {"more": [1, "x"], "text": "y"})) and strict.mask() is None
    for wrong in ({"days": 1}, {"city": 1}, {"city": "x", "tags": [1]}):
        assert not accepts(TokenConstraint(table, grammar), write("get_weather", wrong))
    assert not accepts(TokenConstraint(table, grammar), 'call:get_weather{city:<|"|>x')


def test_tags_that_are_control_tokens() -> None:
    """As in Mistral's vocabularies: a call has the tokens of its tags, not their text."""
    tokenizer, table = with_tags(CONTROL, "[TOOL_CALLS]", "[ARGS]")
    profile, call = Profile("x", dialect="mistral"), '[TOOL_CALLS]get_weather[ARGS]{"city": "x"}'
    ids = tokenizer.encode(call, add_bos=False)
    assert ids[0] == tokenizer.id_of("[TOOL_CALLS]") and tokenizer.id_of("[ARGS]") in ids
    grammar = tools_grammar(profile, [WEATHER, NOTHING], ToolChoice("required", parallel=False))
    forced = TokenConstraint(table, grammar)
    strict = StrictCalls(table, profile, [replace(WEATHER, strict=True), NOTHING])
    for constraint in (forced, strict):
        for token in ids:
            assert allows(constraint, token)
            constraint.accept(token)
    assert forced.done and strict.mask() is None
    spelled = tokenizer.encode("[", add_bos=False)[0]
    assert not allows(TokenConstraint(table, grammar), spelled)
    for token in tokenizer.encode("Text [TOOL_CALLS]nothing[ARGS]{", add_bos=False):
        assert allows(strict, token)
        strict.accept(token)
    assert allows(strict, tokenizer.encode("}", add_bos=False)[0]) and not allows(strict, ids[0])


@pytest.mark.parametrize("dialect", HELD_DIALECTS)
def test_structured_output_or_calls(dialect: str) -> None:
    profile = Profile("x", dialect=dialect)
    grammar = json_or_tools_grammar(profile, [WEATHER, NOTHING], ToolChoice(parallel=False), PERSON)
    call = DIALECTS[dialect].render_call("get_weather", {"city": "x"})
    for text in ('{"name": "T", "age": 3, "kind": "dog", "more": []}', call):
        constraint = TokenConstraint(tokens(), grammar)
        assert refused_at(constraint, text) is None and ends(constraint)
    for text in ("Sure.", "{}", DIALECTS[dialect].render_call("get_weather", {})):
        assert refused_at(TokenConstraint(tokens(), grammar), text) is not None


@pytest.mark.parametrize("where", ["$defs", "definitions"])
@pytest.mark.parametrize("dialect", HELD_DIALECTS)
def test_schemas_with_references(dialect: str, where: str) -> None:
    item = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    properties = {"items": {"type": "array", "items": {"$ref": f"#/{where}/item"}}}
    schema = {"type": "object", "properties": properties, "required": ["items"], where: {"item": item}}
    tool, write = Tool("put", parameters=schema), DIALECTS[dialect].render_call
    grammar = tools_grammar(Profile("x", dialect=dialect), [tool], ToolChoice("required"))
    assert refused_at(TokenConstraint(tokens(), grammar), write("put", {"items": [{"n": 1}, {"n": 2}]})) is None
    assert refused_at(TokenConstraint(tokens(), grammar), write("put", {"items": [{"m": 1}]})) is not None


POINT = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}, "required": ["x"]}
NAMED = {"type": "object", "properties": {"name": {"$ref": "#/$defs/name"}}, "required": ["name"]}
DEFS = {"point": POINT, "named": NAMED, "name": {"enum": ["a", "b"]}, "a/b": {"const": 7}}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"$ref": "#/$defs/point"}, [{"x": 1}, {"x": 1, "y": 2}], [{}, {"y": 2}, {"x": "a"}, {"x": 1, "z": 2}]),
        (
            {"allOf": [{"$ref": "#/$defs/point"}, {"$ref": "#/$defs/named"}]},
            [{"x": 1, "y": 2, "name": "b"}, {"x": 1, "name": "a"}],
            [{"x": 1}, {"name": "a"}, {"x": 1, "name": "c"}],
        ),
        (
            {"anyOf": [{"$ref": "#/$defs/point"}, {"$ref": "#/$defs/named"}, {"type": "null"}]},
            [{"x": 1}, {"name": "a"}],
            [{}, {"x": 1, "name": "a"}, {"name": "c"}],
        ),
        (
            {"type": "object", "properties": {"at": {"anyOf": [{"$ref": "#/$defs/point"}, {"type": "null"}]}}},
            [{"at": {"x": 1}}, {"at": None}, {}],
            [{"at": {"y": 1}}, {"at": 5}],
        ),
        (
            {"properties": {"n": {"anyOf": [{"$ref": "#/$defs/name"}, {"type": "null"}]}}, "required": ["n"]},
            [{"n": "a"}, {"n": None}],
            [{"n": "c"}, {}],
        ),
        ({"properties": {"n": {"allOf": [{"$ref": "#/$defs/name"}]}}}, [{"n": "b"}], [{"n": "bb"}, {"n": 1}]),
        ({"properties": {"n": {"$ref": "#/$defs/a~1b"}, "m": {"$ref": "#/properties/n"}}},
         [{"n": 7, "m": 7}], [{"m": 8}]),
        ({"properties": {"deep": {"$ref": "#"}, "n": {"type": "integer"}}},
         [{"deep": {"deep": {"n": 1}}}], [{"deep": 1}]),
        ({**POINT, "additionalProperties": True}, [{"x": 1}], [{"x": 1, "x ": 1}]),
        ({"properties": {"a": {"type": "integer"}}, "$ref": "#/$defs/point"},
         [{"a": 1, "x": 1}], [{"a": 1}, {"a": "b"}]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dialect", HELD_DIALECTS)
def test_schemas_are_followed(dialect: str, schema: Any, good: list[Any], bad: list[Any]) -> None:
    """Forced calls hold them, and values written as text have their types."""
    tool, write = Tool("put", parameters={**schema, "$defs": DEFS}), DIALECTS[dialect].render_call
    grammar = tools_grammar(Profile("x", dialect=dialect), [tool], ToolChoice("required", parallel=False))
    for arguments in good:
        constraint, text = TokenConstraint(tokens(), grammar), write("put", arguments)
        assert refused_at(constraint, text) is None and ends(constraint), arguments
        ((_, _, got),) = read(text, parser(dialect, tools=[tool]))
        assert json.loads(got) == arguments
    for arguments in bad:
        assert refused_at(TokenConstraint(tokens(), grammar), write("put", arguments)) is not None, arguments


@pytest.mark.parametrize("dialect", HELD_DIALECTS)
def test_a_forced_call_never_repeats_a_key(dialect: str) -> None:
    for schema in ({"$ref": "#/$defs/point"}, POINT, {"allOf": [POINT]}, {**POINT, "additionalProperties": True}):
        tool = Tool("put", parameters={**schema, "$defs": DEFS})
        grammar = tools_grammar(Profile("x", dialect=dialect), [tool], ToolChoice("required", parallel=False))
        text = DIALECTS[dialect].render_call("put", {"x": 1, "y": 2, "z": 3})
        for repeated in ("x", "y"):
            wrong = text.replace('"z"', f'"{repeated}"').replace("=z>", f"={repeated}>").replace("z:", f"{repeated}:")
            assert refused_at(TokenConstraint(tokens(), grammar), wrong) is not None


@pytest.mark.parametrize("dialect", HELD_DIALECTS)
def test_objects_inside_a_forced_call_never_repeat_a_key(dialect: str) -> None:
    schema = {"properties": {"at": {"$ref": "#/$defs/point"}, "all": {"type": "array", "items": POINT}}, "$defs": DEFS}
    (tool,), warnings = held_tools(tokens().check, [Tool("put", parameters=schema)], DIALECTS[dialect])
    grammar = tools_grammar(Profile("x", dialect=dialect), [tool], ToolChoice("required", parallel=False))
    assert warnings == []
    for arguments in ({"at": {"x": 1, "z": 2}}, {"all": [{"x": 1, "z": 2}]}):
        text = DIALECTS[dialect].render_call("put", arguments)
        right = text.replace('"z"', '"y"').replace("z:", "y:")
        assert refused_at(TokenConstraint(tokens(), grammar), right) is None
        for wrong in (text, text.replace('"z"', '"x"').replace("z:", "x:")):
            assert refused_at(TokenConstraint(tokens(), grammar), wrong) is not None


def test_many_alternatives_become_one_form() -> None:
    options = [
        {"properties": {f"k{i}": {"type": "integer"}, "all": {}}, "required": [f"k{i}", "all"]} for i in range(40)
    ]
    (form,) = forms_of({"anyOf": options})
    assert form.required == {"all"} and len(form.properties) == 41
    assert len(forms_of({"allOf": [{"anyOf": options}] * 9})) == 1


def test_a_tool_choice_without_tools() -> None:
    with pytest.raises(InvalidRequestError, match="tool_choice names 'x', which is not among the tools"):
        calls("qwen_xml", names=("x",))
    with pytest.raises(InvalidRequestError, match="there are no tools"):
        tools_grammar(Profile("x"), [], ToolChoice("required"))
    with pytest.raises(InvalidRequestError, match="no tool may be called"):
        tools_grammar(Profile("x"), [NOTHING], ToolChoice("none"))


@pytest.mark.parametrize("dialect", ["qwen_xml", "hermes_json"])
def test_strict_tools_are_free_outside_of_calls(dialect: str) -> None:
    write = DIALECTS[dialect].render_call
    strict = [replace(tool, strict=True) for tool in (WEATHER, NOTHING)]
    constraint = StrictCalls(tokens(), Profile("x", dialect=dialect), strict)
    assert constraint.mask() is None
    assert refused_at(constraint, f"Text, {write('nothing', {})} more, <tool") is None
    assert constraint.mask() is None and not constraint.done
    assert refused_at(constraint, " and" + write("get_weather", {"city": "x", "days": 1})) is None
    assert refused_at(constraint, "\n" + write("get_weather", {"days": 1})) is not None


@pytest.mark.parametrize("dialect", ["qwen_xml", "hermes_json"])
def test_plain_tools_are_free_beside_strict_ones(dialect: str) -> None:
    write = DIALECTS[dialect].render_call
    tools = [replace(WEATHER, strict=True), WRITE, replace(NOTHING, parameters={"pattern": "(?!a)b"})]
    constraint = StrictCalls(tokens(), Profile("x", dialect=dialect), tools)
    plain = write("write", {"anything": [1], "text": "x"}).replace("text", "text ")
    assert refused_at(constraint, f"Text {plain} and {write('nothing', {'a': 1})}") is None
    assert constraint.mask() is None
    assert refused_at(constraint, "\n" + write("get_weather", {"days": 1})) is not None


# --- schemas that cannot be held in full

LOOK_AROUND = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"  # pydantic's pattern of a Decimal


@pytest.mark.parametrize(
    ("part", "note"),
    [
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "uniqueItems"),
        ({"type": "object", "propertyNames": {"pattern": "x"}}, "propertyNames"),
        ({"not": {"type": "null"}}, "not"),
        ({"type": "string", "format": "file-path"}, "file-path"),
        ({"type": "string", "pattern": LOOK_AROUND}, "look-around"),
        ({"type": "array", "items": {"type": "string", "pattern": "(a"}}, "unclosed group"),
        ({"type": "array", "contains": {"type": "null"}}, "contains"),
        ({"if": {"type": "string"}, "then": {"maxLength": 3}}, "then"),
        ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}, "oneOf"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, None),
        ({"type": "object", "properties": {"b": {"type": "string"}}, "required": None}, None),
        ({"type": "string", "format": None, "enum": ["x", None]}, None),
        ({"type": "string", "format": "uuid", "pattern": "^[a-f0-9-]+$", "description": "An id."}, None),
    ],
)
def test_keywords_that_cannot_be_held_loosen(part: dict[str, Any], note: str | None) -> None:
    tool = Tool("put", parameters={"type": "object", "properties": {"a": part}, "required": ["a"]})
    (held,), warnings = held_tools(tokens().check, [tool], DIALECTS["hermes_json"])
    assert len(warnings) == (note is not None)
    assert note is None or ("the tool 'put'" in warnings[0] and note in warnings[0])
    for dialect in HELD_DIALECTS:
        TokenConstraint(tokens(), tools_grammar(Profile("x", dialect=dialect), [held], ToolChoice("required")))
    schema, warnings = held_schema(tokens().check, tool.parameters, "the response format", must_hold=False)
    assert len(warnings) == (note is not None)
    TokenConstraint(tokens(), json_grammar(schema))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "string", "pattern": LOOK_AROUND}, "the tool 'put' is strict, but cannot be held: the pattern"),
        ({"type": "strin"}, "the schema of the tool 'put' cannot be held: Invalid type: strin"),
        (
            {"type": "integer", "minimum": "x"},
            "the schema of the tool 'put' cannot be held: Expected f64 for 'minimum'",
        ),
    ],
)
def test_a_schema_that_must_hold_is_refused_by_its_tool(part: dict[str, Any], message: str) -> None:
    tool = Tool("put", parameters={"type": "object", "properties": {"a": part}}, strict=True)
    with pytest.raises(InvalidRequestError, match=re.escape(message)):
        held_tools(tokens().check, [NOTHING, tool], DIALECTS["hermes_json"])


def test_requests_with_such_schemas(server: Running) -> None:
    """Plain tools are not read at all; forced ones warn; strict ones are refused, and the message names the tool."""
    decimal = {"type": "object", "properties": {"a": {"type": "string", "pattern": LOOK_AROUND}}}

    def ask(client: httpx.Client, strict: bool, choice: str) -> httpx.Response:
        function = {"name": "pay", "parameters": decimal, "strict": strict}
        body = {"messages": [{"role": "user", "content": "Go."}], "max_tokens": 1, "tool_choice": choice}
        return client.post("/v1/chat/completions", json={**body, "tools": [{"type": "function", "function": function}]})

    with server.client() as client:
        plain, forced, strict = (ask(client, *how) for how in ((False, "auto"), (False, "required"), (True, "auto")))
    assert plain.status_code == 200 and "warnings" not in plain.json()
    assert forced.status_code == 200 and "the tool 'pay'" in forced.json()["warnings"][0]
    assert strict.status_code == 400 and "the tool 'pay' is strict" in strict.json()["error"]["message"]


# --- complete answers


@pytest.mark.parametrize("dialect", ["hermes_json", "llama_json"])
def test_random_logits_give_complete_calls(dialect: str, seed: int = 5) -> None:
    rng = np.random.default_rng(seed)
    tool = Tool("person", parameters=PERSON)
    grammar = tools_grammar(Profile("x", dialect=dialect), [tool, NOTHING], ToolChoice("required", parallel=False))
    for _ in range(10):
        text = answer(TokenConstraint(tokens(), grammar), lambda: rng.normal(0, 3, tokens().vocab).astype(np.float32))
        ((kind, name, arguments),) = read(text, parser(dialect, tools=[tool, NOTHING]))
        assert kind == "call" and name in ("person", "nothing")
        if name == "person":
            check_person(json.loads(arguments))


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = Field(ge=0, le=9)


class Dog(BaseModel):
    kind: Literal["dog"]
    owner: Colour | None


class Home(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    colour: Colour
    rooms: Annotated[list[Colour], Field(max_length=2)] | None
    place: tuple[Annotated[int, Field(ge=0, le=9)], bool]


class Tagged(Cat):
    tags: Annotated[set[bool], Field(max_length=2)]


class Either(RootModel[Cat | Dog]): ...


@pytest.mark.parametrize(("model", "loosened"), [(Cat, ""), (Home, ""), (Either, ""), (Tagged, "uniqueItems")])
@pytest.mark.parametrize("dialect", HELD_DIALECTS)
def test_forced_calls_validate(dialect: str, model: type[BaseModel], loosened: str) -> None:
    """Schemas as pydantic makes them: random calls are valid, or a warning says which keyword is not held."""
    rng = np.random.default_rng(3)
    put = Tool("put", parameters=model.model_json_schema())
    (tool,), warnings = held_tools(tokens().check, [put], DIALECTS[dialect])
    assert bool(warnings) == bool(loosened) and all(loosened in warning for warning in warnings)
    grammar = tools_grammar(Profile("x", dialect=dialect), [tool], ToolChoice("required", parallel=False))
    for _ in range(5):
        text = answer(TokenConstraint(tokens(), grammar), lambda: rng.normal(0, 3, tokens().vocab).astype(np.float32))
        ((kind, _, arguments),) = read(text, parser(dialect, tools=[tool]))
        assert kind == "call"
        model.model_validate_json(arguments)  # a set takes equal items


def answer(constraint: TokenConstraint, logits: Any) -> str:
    sampler = _engine.Sampler(tokens().vocab, temperature=1.0)
    ids: list[int] = []
    while not constraint.done and len(ids) < 300:
        sampler.set_mask(constraint.mask())
        ids.append(sampler.sample(logits()))
        constraint.accept(ids[-1])
    assert constraint.done
    return tokens().tokenizer.decode(ids)


def check_person(person: dict[str, Any]) -> None:
    assert list(person) == ["name", "age", "kind", "more"]
    assert isinstance(person["name"], str) and len(person["name"]) <= 12
    assert isinstance(person["age"], int) and 0 <= person["age"] <= 150
    assert person["kind"] in ("cat", "dog") and all(isinstance(x, bool) for x in person["more"])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_real_model(temperature: float) -> None:
    engine = open_engine(TINY_HYBRID)
    tokenizer = tiny_tokenizer()
    table = GrammarTokens(tokenizer, engine.info["vocab"], tokenizer.eos_ids)
    session, sampler = _engine.Session(engine), _engine.Sampler(table.vocab, temperature=temperature)
    constraint = TokenConstraint(table, json_grammar(PERSON))
    prompt = tokenizer.encode("person = ", add_bos=False)
    ids = list(prompt)
    sampler.set_prompt(np.array(ids, np.int32))
    while not constraint.done:
        session.sync(np.array(ids, np.int32))
        sampler.set_mask(constraint.mask())
        ids.append(session.sample(sampler))
        constraint.accept(ids[-1])
    check_person(json.loads(tokenizer.decode(ids[len(prompt) :])))


def test_a_model_that_writes_line_ends_after_its_thinking() -> None:
    """It closes its thinking, prefers line ends to all else, and yet answers."""
    engine, tokenizer = open_engine(TINY_HYBRID), tiny_tokenizer()
    table = GrammarTokens(tokenizer, engine.info["vocab"], tokenizer.eos_ids)
    bias = dict.fromkeys(table.after_close, 90.0)
    session, sampler = _engine.Session(engine), _engine.Sampler(table.vocab, logit_bias=list(bias.items()))
    prompt = tokenizer.encode("<think>\nhm</think>", add_bos=False)
    constraint = TokenConstraint(table, json_grammar(PERSON), thinking=TAGS, prompt_text="<think>\n")
    for token in tokenizer.encode("hm</think>", add_bos=False):
        constraint.accept(token)
    ids = list(prompt)
    sampler.set_prompt(np.array(ids, np.int32))
    while not constraint.done and len(ids) < 200:
        session.sync(np.array(ids, np.int32))
        sampler.set_mask(constraint.mask())
        ids.append(session.sample(sampler))
        constraint.accept(ids[-1])
    text = tokenizer.decode(ids[len(prompt) :])
    assert text.startswith("\n\n{")
    check_person(json.loads(text))


def test_an_answer_does_not_wait_for_the_mask_of_another() -> None:
    """Two answers to one request: accept() holds the GIL, so it would stop every thread for the time of a slow mask."""
    grammar = regex_grammar(hostile.HOLDS["regex"]["response_format"]["regex"])
    (x,) = tokens().tokenizer.encode("x", add_bos=False)

    def times() -> tuple[float, float]:
        """Seconds of the slow mask, and of the other answer's token meanwhile."""
        with grammar_work():
            slow, other = (TokenConstraint(tokens(), grammar) for _ in range(2))
        begun = threading.Event()

        def compute() -> float:
            begun.set()
            start = time.perf_counter()
            slow.mask()
            return time.perf_counter() - start

        with ThreadPoolExecutor(1) as pool:
            mask = pool.submit(compute)
            begun.wait()
            time.sleep(0.01)
            start = time.perf_counter()
            with suppress(InvalidRequestError):  # what follows is too complex
                other.accept(x)
            accept = time.perf_counter() - start
            return mask.result(), accept

    # Another process may take the core meanwhile, though hardly each time.
    assert any(accept < mask / 2 for mask, accept in (times() for _ in range(5)))


def test_further_answers_do_not_spend_the_time_of_a_grammar() -> None:
    """A request for many answers compiles its grammar for each; a limit bounds these compilations too."""
    person, other = json_grammar(PERSON), json_grammar()
    with grammar_work() as work:
        TokenConstraint(tokens(), other)
        TokenConstraint(tokens(), person)
        spent, repeated = work.spent_s, work.repeated_s
        assert spent > 0 and repeated == 0
        work.spent_s = SECONDS  # as if they had been slow
        for _ in range(15):
            TokenConstraint(tokens(), person)
        assert work.spent_s == SECONDS and work.repeated_s > 0
        with pytest.raises(InvalidRequestError, match="the grammars of the request take more than 3 s"):
            TokenConstraint(tokens(), regex_grammar("[0-9]+"))
        work.repeated_s = SECONDS
        with pytest.raises(InvalidRequestError, match=r"more than 3 s; ask for fewer answers \(n\)"):
            TokenConstraint(tokens(), person)


def test_a_large_vocabulary() -> None:
    tokenizer = vocab_tokenizer("qwen35")
    table = GrammarTokens(tokenizer, 248320, tokenizer.eos_ids)
    constraint = TokenConstraint(table, json_grammar(PERSON))
    for token in tokenizer.encode('{"name": "Łódź", "age": 42, "kind": "cat", "more": [false]}', add_bos=False):
        assert allows(constraint, token)
        constraint.accept(token)
    assert constraint.done


@pytest.mark.parametrize(
    ("part", "good", "bad", "note"),
    [
        ({"type": "string", "minLength": 2, "maxLength": 4}, ["ab", "a\nbc"], ["a", "abcde"], None),
        ({"type": "string", "pattern": "^[a-f/]+$", "maxLength": 3}, ["a/b"], ["abcd", "x"], None),
        ({"type": "string", "pattern": "b"}, ["abc"], ["ac"], None),
        ({"type": "string", "minLength": 3}, ["a\nb"], ["ab"], None),
        ({"type": "string", "pattern": "^a|b$"}, ["x"], [], "pattern"),
        ({"type": "string", "format": "date"}, ["x"], [], "format"),
        ({"type": "string", "maxLength": 1001}, ["x"], [], "maxLength"),
        ({"type": "string", "pattern": r"^\^[$^]\$$"}, ["^$$", "^^$"], ["a"], None),
        ({"anyOf": [{"enum": ["low", "high"]}, {"type": "integer", "maximum": 9}]}, ["low", "7"], ["10", "x"], None),
        ({"type": ["string", "null"], "maxLength": 2}, ["null", "abc"], [], "maxLength"),
    ],
)
def test_strings_in_tags(part: dict[str, Any], good: list[str], bad: list[str], note: str | None) -> None:
    tool = Tool("put", parameters={"type": "object", "properties": {"a": part}, "required": ["a"]})
    (held,), warnings = held_tools(tokens().check, [tool], DIALECTS["qwen_xml"])
    assert len(warnings) == (note is not None) and all(f": {note} of text in tags" in warning for warning in warnings)
    grammar = tools_grammar(Profile("x", dialect="qwen_xml"), [held], ToolChoice("required", parallel=False))
    for value in (*good, *bad):
        text = DIALECTS["qwen_xml"].render_call("put", {"a": value})
        assert (refused_at(TokenConstraint(tokens(), grammar), text) is None) is (value in good)
