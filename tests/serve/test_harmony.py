"""Harmony, the format of gpt-oss: the parser, the messages that its templates take, and its control tokens."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from answers import TOOLS, read
from hypothesis import given
from hypothesis import strategies as st
from lucebox.chat.dialects import DIALECTS, dialect_of
from lucebox.chat.dialects.harmony import ANSWER, CLOSE, OPEN, one_call_each
from lucebox.chat.harmony_parsing import HarmonyParser
from lucebox.chat.profiles import Profile
from lucebox.chat.tools import Tool, ToolChoice
from lucebox.generation.events import ToolArguments, ToolStart
from lucebox.text.vocab import all_end_ids

PROMPT = "<|start|>user<|message|>Hi<|end|><|start|>assistant"
THOUGHT = f"{OPEN}I think.{CLOSE}"
NEXT = "<|start|>assistant"
CALL = '<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>'
PARIS = ("call", "get_weather", '{"city": "Paris"}')


def parser(
    *, tools: list[Tool] = TOOLS, choice: ToolChoice | None = None, thinking: bool = True, prompt: str = PROMPT,
    continues: bool = False,
) -> HarmonyParser:  # fmt: skip
    ids = itertools.count()
    return HarmonyParser(
        Profile("test", dialect="harmony"), tools, choice or ToolChoice(), thinking, prompt, continues=continues,
        new_id=lambda: f"id{next(ids)}",
    )  # fmt: skip


@pytest.mark.parametrize("end", ["<|return|>", "<|end|>", ""])
def test_reasoning_then_the_answer(end: str) -> None:
    text = f"{THOUGHT}{NEXT}{ANSWER}It is <|so|>.\n{end}"
    assert read(text, parser()) == [("think", "I think."), ("text", "It is <|so|>.\n")]
    assert read(f"{ANSWER}Yes.{end}", parser()) == [("text", "Yes.")]
    assert read("", parser()) == []


@pytest.mark.parametrize(
    "call",
    [
        CALL,
        CALL.removesuffix("<|call|>"),
        CALL.replace("<|constrain|>json", "json"),
        CALL.replace(" <|constrain|>json", ""),
        CALL.replace("<|constrain|>", "code "),
        ' to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>{"city": "Paris"} <|call|>',
        '<|channel|>analysis to=functions.get_weather code<|message|>\n{"city": "Paris"}<|call|>',
    ],
)
def test_spellings_of_a_call(call: str) -> None:
    assert read(call, parser()) == [PARIS]
    assert read(f"{THOUGHT}{NEXT}{call}", parser()) == [("think", "I think."), PARIS]


def test_text_before_a_call_and_several_calls() -> None:
    text = f"{THOUGHT}{NEXT}<|channel|>commentary<|message|>I will look.<|end|>{NEXT}{CALL}{NEXT}{CALL}"
    assert read(text, parser()) == [("think", "I think."), ("text", "I will look."), PARIS, PARIS]
    once = read(text, parser(choice=ToolChoice(parallel=False)))
    assert once[:3] == [("think", "I think."), ("text", "I will look."), PARIS]
    refused = "a tool call was emitted as text: parallel_tool_calls is false, and this is a second call"
    assert ("warning", refused) in once


def test_messages_of_one_kind_are_apart() -> None:
    text = f"{THOUGHT}{NEXT}{THOUGHT}{NEXT}<|channel|>commentary<|message|>One.<|end|>{NEXT}{ANSWER}Two.<|return|>"
    assert read(text, parser()) == [("think", "I think.\n\nI think."), ("text", "One.\n\nTwo.")]


def test_a_name_and_arguments_come_as_soon_as_they_are_known() -> None:
    reader = parser()
    head, body = CALL.split("<|message|>")
    assert reader.push(head + "<|message|") == []
    assert reader.push(">") == [ToolStart(0, "id0", "get_weather")]
    assert reader.push(body[:6]) == [ToolArguments(0, body[:6])]
    assert not reader.ends_with_call
    reader.push(body[6:].removesuffix("<|call|>"))
    assert reader.ends_with_call


def test_broken_calls() -> None:
    assert read(CALL.split(' "Paris')[0], parser())[0] == ("broken", "get_weather", '{"city":')
    assert read(CALL.replace('{"city": "Paris"}', "city"), parser())[0] == ("broken", "get_weather", "{")
    assert read(CALL.replace('"Paris"}', '"Paris"'), parser())[0] == ("broken", "get_weather", '{"city": "Paris"')


def test_calls_of_unknown_tools_and_of_none_are_text() -> None:
    search = CALL.replace("functions.get_weather", "browser.search")
    text = search.replace("<|call|>", "")
    assert read(search, parser()) == [
        ("warning", "a tool call was emitted as text: there is no tool 'browser.search' to call"),
        ("text", text),
    ]
    assert read(CALL, parser(choice=ToolChoice("none")))[-1] == ("text", CALL.replace("<|call|>", ""))


def test_text_without_a_header() -> None:
    """An answer held to a format has no header, and a small model may forget it."""
    for text in ('{"a": 1}', "assist", "Hello <|end of|> all", "to", "x" * 2000):
        assert read(text, parser()) == [("text", text)]
        assert read(text, parser(prompt="plain")) == [("text", text)]


def test_begun_answers() -> None:
    assert read(" on.<|return|>", parser(prompt=PROMPT + ANSWER + "Go", continues=True)) == [("text", " on.")]
    assert read(f" on.{CLOSE}{NEXT}{ANSWER}So.", parser(prompt=PROMPT + OPEN)) == [("think", " on."), ("text", "So.")]
    assert read(f"{THOUGHT}{NEXT}{ANSWER}So.", parser(thinking=False)) == [("text", "I think.\n\nSo.")]


@given(st.data())
def test_cuts_change_nothing(data: st.DataObject) -> None:
    parts = [THOUGHT, NEXT, CALL, ANSWER, "text", "<|", "<|end|>", "{", '"', " to=functions.write", "<|message|>", "\n"]
    text = "".join(data.draw(st.lists(st.sampled_from(parts), max_size=12)))
    whole = parser()
    expected = [*whole.push(text), *whole.finish()]
    pieces = parser()
    got = [event for char in text for event in pieces.push(char)] + pieces.finish()
    from answers import simple

    assert simple(got) == simple(expected)


def test_dialect() -> None:
    assert dialect_of("{{ '<|channel|>analysis<|message|>' }}") == "harmony"
    dialect = DIALECTS["harmony"]
    assert read(dialect.render_call("get_weather", {"city": "Paris"}), parser()) == [PARIS]
    broken = dialect.render_broken("get_weather", '{"city": "Pa')
    assert read(broken, parser())[0] == ("broken", "get_weather", '{"city": "Pa')


def test_messages_for_the_template() -> None:
    def call(i: int) -> dict[str, Any]:
        return {"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": {"i": i}}}

    user, answer = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a", "reasoning_content": "r"}
    calls = {"role": "assistant", "content": "look", "reasoning_content": "r", "tool_calls": [call(0), call(1)]}
    results = [{"role": "tool", "content": f"r{i}", "tool_call_id": f"c{i}"} for i in (1, 0)]
    assert one_call_each([user, calls, *results, answer]) == [
        user,
        {"role": "assistant", "content": None, "tool_calls": [call(1)]},
        results[0],
        {"role": "assistant", "content": None, "tool_calls": [call(0)], "thinking": "r\n\nlook"},
        results[1],
        {"role": "assistant", "content": "a", "thinking": "r"},
    ]
    assert len(one_call_each([user, calls])) == 3


def test_an_answer_has_several_messages() -> None:
    ids = {"<|end|>": 7, "<|return|>": 2, "<|call|>": 12, "<|endoftext|>": 9}
    assert all_end_ids([2, 7], ids, lambda i: True) == (2, 9, 12)
    assert 7 in all_end_ids([], {"<|end|>": 7}, lambda i: True)
