"""The output parser: every dialect, malformed calls, and independence of how the text is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from answers import NOTHING, TOOLS, WEATHER, parser, read
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lucebox.chat.dialects import DIALECTS, dialect_of
from lucebox.chat.tools import ToolChoice
from lucebox.generation.events import TextDelta, ToolArguments, ToolStart

XML_CALL = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
JSON_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
GEMMA_CALL = '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>'
MISTRAL_CALL = '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}'
LLAMA_CALL = '{"name": "get_weather", "parameters": {"city": "Paris"}}'
PARIS = ("call", "get_weather", '{"city": "Paris"}')
OTHER = ("call", "nothing", "{}")
TAGGED = {"qwen_xml": XML_CALL, "hermes_json": JSON_CALL}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_plain_text(dialect: str) -> None:
    text = "  Two < three;\n\n a <b>bold</b> <tool_c thing } { \n"
    assert read(text, parser(dialect, thinking=False)) == [("text", text)]
    assert read(text, parser(dialect, tools=[])) == [("text", text.lstrip())]
    assert read("", parser(dialect)) == []
    assert read(" \n", parser(dialect, thinking=False)) == [("text", " \n")]


@pytest.mark.parametrize("dialect", TAGGED)
def test_text_before_between_and_after(dialect: str) -> None:
    call = TAGGED[dialect]
    text = f"I will look.\n\n{call}\nNow the other:\n{call}\n\n{call}\n Done. "
    assert read(text, parser(dialect)) == [
        ("text", "I will look."), PARIS, ("text", "Now the other:"), PARIS, PARIS, ("text", "Done. "),
    ]  # fmt: skip


def test_a_name_comes_as_soon_as_it_is_known() -> None:
    for dialect, start, more in (
        ("qwen_xml", "<tool_call>\n<function=write>", "\n<parameter=path>\n/tm"),
        ("hermes_json", '<tool_call>\n{"name": "write"', ', "arguments": {"path": "/tm'),
        ("llama_json", '{"name": "write"', ', "parameters": {"path": "/tm'),
        ("mistral", "[TOOL_CALLS]write[ARGS]", '{"path": "/tm'),
    ):
        reader = parser(dialect)
        assert reader.push(start[:-1]) == []
        assert reader.push(start[-1]) == [ToolStart(0, "id0", "write")]
        (arguments,) = reader.push(more)
        assert arguments == ToolArguments(0, '{"path": "/tm')
        assert reader.push("p") == [ToolArguments(0, "p")]


@pytest.mark.parametrize(
    ("value", "key", "expected"),
    [
        ("Paris", "city", "Paris"),
        ("5", "city", "5"),
        ("null", "city", "null"),
        ("", "city", ""),
        ("\n two\n lines \n", "city", "\n two\n lines \n"),
        ('a "quoted" \\ \t \x01 é 🙂', "city", 'a "quoted" \\ \t \x01 é 🙂'),
        ("</parameter>", "city", "</parameter>"),
        ("x</parameter>\n</param", "city", "x</parameter>\n</param"),
        ("5", "days", 5),
        ("5.0", "days", 5.0),
        ("five", "days", "five"),
        ("5.5", "days", "5.5"),
        ("true", "exact", True),
        ("False", "exact", False),
        ("1", "exact", "1"),
        ("null", "where", None),
        ('{"a": [1, 2]}', "where", {"a": [1, 2]}),
        ("{'a': 1}", "where", "{'a': 1}"),
        ('["a", "b"]', "tags", ["a", "b"]),
        ("[NaN]", "tags", "[NaN]"),
        ("9" * 5000, "days", "9" * 5000),
        ("null", "note", None),
        ("nullify", "note", "nullify"),
        ("7", "note", "7"),
        ("7", "unheard_of", "7"),
    ],
)
def test_values_have_the_type_of_the_schema(value: str, key: str, expected: object) -> None:
    text = XML_CALL.replace("city", key).replace("Paris", value)
    assert read(text, parser("qwen_xml")) == [("call", "get_weather", json.dumps({key: expected}, ensure_ascii=False))]


def test_types_behind_references() -> None:
    tool = WEATHER.parameters | {"$defs": {"n": {"enum": [1, 2]}}, "properties": {"city": {"$ref": "#/$defs/n"}}}
    reader = parser("qwen_xml", tools=[type(WEATHER)("get_weather", parameters=tool)])
    assert read(XML_CALL.replace("Paris", "2"), reader) == [("call", "get_weather", '{"city": 2}')]


@pytest.mark.parametrize(
    ("dialect", "text", "expected"),
    [
        ("qwen_xml", XML_CALL.replace("\n", ""), [PARIS]),
        ("qwen_xml", XML_CALL.removesuffix("\n</tool_call>"), [PARIS]),
        ("qwen_xml", XML_CALL.removeprefix("<tool_call>\n"), [PARIS]),
        ("qwen_xml", XML_CALL[12:-13], [PARIS]),
        ("qwen_xml", XML_CALL[12:-13] + "\n" + XML_CALL, [PARIS, PARIS]),
        ("qwen_xml", "<tool_call><function=nothing></function><function=nothing></function></tool_call>", [OTHER] * 2),
        ("qwen_xml", JSON_CALL, [PARIS]),
        ("qwen_xml", XML_CALL.removesuffix("</tool_call>") + "And so", [PARIS, ("text", "And so")]),
        ("hermes_json", JSON_CALL.replace("\n", ""), [PARIS]),
        ("hermes_json", JSON_CALL.removesuffix("\n</tool_call>"), [PARIS]),
        ("hermes_json", JSON_CALL.replace("arguments", "parameters"), [PARIS]),
        ("hermes_json", '<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>', [PARIS]),
        ("hermes_json", '<tool_call>{"name": "nothing"}</tool_call>', [OTHER]),
        ("hermes_json", '<tool_call>{"name": "nothing", "arguments": null, "id": 4}</tool_call>', [OTHER]),
        ("hermes_json", '<tool_call>{"name": "nothing", "arguments": " "}</tool_call>', [OTHER]),
        (
            "hermes_json",
            '<tool_call>{"name": "write", "arguments": "{\\"text\\": \\"\\\\ud800\\"}"}</tool_call>',
            [("call", "write", '{"text": "\\ud800"}')],
        ),
        (
            "hermes_json",
            '<tool_call>{"type": "function", "function": {"name": "nothing", "arguments": "{}"}}</tool_call>',
            [OTHER],
        ),
        ("hermes_json", '<tool_call>[{"name": "nothing"}, {"name": "nothing"} ]</tool_call>', [OTHER, OTHER]),
        (
            "hermes_json",
            '<tool_call>{"name": "write", "arguments": {"text": "a\nb\t"}}</tool_call>',
            [("call", "write", '{"text": "a\\nb\\t"}')],
        ),
        ("llama_json", LLAMA_CALL, [PARIS]),
        ("llama_json", f" \n{LLAMA_CALL}; {LLAMA_CALL}", [PARIS, PARIS]),
        ("llama_json", f"<|python_tag|>{LLAMA_CALL}", [PARIS]),
        ("llama_json", f"Here: {LLAMA_CALL}", [("text", f"Here: {LLAMA_CALL}")]),
        ("mistral", MISTRAL_CALL, [PARIS]),
        ("mistral", f"I look.{MISTRAL_CALL}{MISTRAL_CALL}", [("text", "I look."), PARIS, PARIS]),
        ("mistral", MISTRAL_CALL.replace("[ARGS]", "[CALL_ID]a1b2c3d4e[ARGS] "), [PARIS]),
        ("mistral", "[TOOL_CALLS] nothing[ARGS]{}", [OTHER]),
        ("gemma4", GEMMA_CALL, [PARIS]),
        ("gemma4", f"I look.{GEMMA_CALL}{GEMMA_CALL}", [("text", "I look."), PARIS, PARIS]),
        ("gemma4", GEMMA_CALL.removesuffix("<tool_call|>") + "And so", [PARIS, ("text", "And so")]),
        ("gemma4", GEMMA_CALL.replace('<|"|>', ""), [PARIS]),
        (
            "gemma4",
            '<|tool_call>call:write{path:<|"|>a"\n<|b<|"|>, '
            'text:{n:[1,-2.5e3,true,null,<|"|>x<|"|>],o:{}}}<tool_call|>',
            [("call", "write", '{"path": "a\\"\\n<|b", "text": {"n": [1, -2.5e3, true, null, "x"], "o": {}}}')],
        ),
        (
            "mistral",
            '[TOOL_CALLS][{"name": "nothing", "arguments": {}}, '
            '{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "a1b2c3d4e"}]',
            [OTHER, PARIS],
        ),
    ],
)
def test_other_accepted_forms_of_calls(dialect: str, text: str, expected: list[Any]) -> None:
    assert read(text, parser(dialect)) == expected


@pytest.mark.parametrize(
    ("dialect", "text", "why"),
    [
        ("qwen_xml", XML_CALL.replace("get_weather", "get_time"), "there is no tool 'get_time'"),
        ("qwen_xml", "<tool_call>\nget_weather(Paris)\n</tool_call>", "expected '<function='"),
        ("qwen_xml", "<tool_call>", "it is incomplete"),
        ("qwen_xml", "<tool_call>\n<function=get_wea", "it is incomplete"),
        ("qwen_xml", "<function=>", "a tag without a name"),
        ("hermes_json", '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>', "there is no tool 'get_time'"),
        ("hermes_json", '<tool_call>{"arguments": {"a": 1}}</tool_call>', "the call has no name"),
        ("hermes_json", '<tool_call>{"arguments": {"a": 01}, "name": "nothing"}</tool_call>', "not a JSON value"),
        ("hermes_json", "<tool_call>{'name': 'nothing'}</tool_call>", "expected a string"),
        (
            "hermes_json",
            '<tool_call>{"arguments": 5, "name": "nothing"}</tool_call>',
            "the arguments are not an object",
        ),
        ("hermes_json", '<tool_call>{"arguments": "[1]", "name": "nothing"}</tool_call>', "are not an object"),
        ("hermes_json", '<tool_call>{"arguments": "{1}", "name": "nothing"}</tool_call>', "expected a key"),
        ("hermes_json", '<tool_call>{"name": "noth', "it is incomplete"),
        ("llama_json", '{"name": "get_time", "parameters": {}}', "there is no tool 'get_time'"),
        ("llama_json", '{"answer": 5}', "a call has no 'answer'"),
        ("mistral", "[TOOL_CALLS]get_time[ARGS]{}", "there is no tool 'get_time'"),
        ("mistral", "[TOOL_CALLS]get_weather", "it is incomplete"),
        ("mistral", "[TOOL_CALLS]get weather\n", "expected a name and [ARGS]"),
        ("mistral", "[TOOL_CALLS]get_weather{", "expected a name and [ARGS]"),
        ("mistral", "[TOOL_CALLS][ARGS]{}", "expected"),
        ("gemma4", "<|tool_call>call:get_time{}<tool_call|>", "there is no tool 'get_time'"),
        ("gemma4", "<|tool_call>get_weather{}", "expected 'call:'"),
        ("gemma4", "<|tool_call>call:get_wea", "it is incomplete"),
        ("gemma4", "<|tool_call>call:{}", "expected the name of a function"),
    ],
)
def test_malformed_calls_are_text(dialect: str, text: str, why: str) -> None:
    if why != "it is incomplete":
        text += " tail"
    events = read(text, parser(dialect))
    assert "".join(e[1] for e in events if e[0] == "text") == text
    assert any(why in e[1] for e in events if e[0] == "warning")
    assert {e[0] for e in events} == {"text", "warning"}


def test_a_tag_in_prose_before_a_call() -> None:
    text = f"I use <tool_call><tool_call> tags:{XML_CALL}"
    events = read(text, parser("qwen_xml"))
    assert events[-1] == PARIS
    assert "".join(e[1] for e in events if e[0] == "text") == "I use <tool_call><tool_call> tags:"


def test_a_truncated_call() -> None:
    """The arguments stay invalid JSON, so that no client runs the call."""
    for dialect, text, begun in (
        ("qwen_xml", XML_CALL[:70], '{"city": "Par'),
        ("hermes_json", JSON_CALL[:-18], '{"city": "Par'),
        ("mistral", MISTRAL_CALL[:-4], '{"city": "Par'),
        ("gemma4", GEMMA_CALL[:-20], '{"city": "Par'),
    ):
        kind, name, arguments = read(text, parser(dialect))[0]
        assert (kind, name) == ("broken", "get_weather") and begun.startswith(arguments[:10])
        with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
            json.loads(arguments)
        assert read(text, parser(dialect))[1][0] == "warning"


def test_a_call_malformed_after_its_name() -> None:
    text = '<tool_call>{"name": "write", "arguments": {"path": 1,,}}</tool_call>'
    call, warning, rest = read(text, parser("hermes_json"))
    assert call == ("broken", "write", '{"path": 1,')
    assert "malformed" in warning[1] and rest == ("text", ",}}</tool_call>")


def test_tool_choice() -> None:
    named = ToolChoice("required", ("nothing",))
    assert read(XML_CALL, parser("qwen_xml", choice=ToolChoice("none"))) == [("text", XML_CALL)]
    assert read(XML_CALL, parser("qwen_xml", tools=[])) == [("text", XML_CALL)]
    events = read(XML_CALL, parser("qwen_xml", choice=named))
    assert events[-1][0] == "text" and "there is no tool" in events[0][1]
    one = ToolChoice("auto", parallel=False)
    events = read(f"{JSON_CALL}\n{JSON_CALL}", parser("hermes_json", choice=one))
    assert events[0] == PARIS and "second call" in events[1][1] and events[2][1] == JSON_CALL


# --- thinking


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        ("<think>\n", "I see.\n</think>\n\nYes.", [("think", "I see."), ("text", "Yes.")]),
        ("<think>", " a\n\n b </think>Yes.", [("think", "a\n\n b"), ("text", "Yes.")]),
        ("", "<think>\nI see.\n</think>\n\nYes.", [("think", "I see."), ("text", "Yes.")]),
        ("", "\n<think>\n\n</think>\n\nYes.", [("text", "Yes.")]),
        ("<think>\n\n</think>\n\n", "Yes.", [("text", "Yes.")]),
        ("<think>\n\n</think>\n\n", "\n</think>\n\nYes.", [("text", "Yes.")]),
        ("What is <think>?<|im_end|>", "Yes.", [("text", "Yes.")]),
        ("", "Use <think> and </think>.", [("text", "Use <think> and </think>.")]),
        ("<think>\n", "It never", [("think", "It never")]),
        ("<think>\n", "a <thi </thin", [("think", "a <thi </thin")]),
        ("<think>\n", f"Look.\n</think>\n\n{XML_CALL}", [("think", "Look."), PARIS]),
        ("", f"{XML_CALL}<think>\nNow.\n</think>\nYes", [PARIS, ("think", "Now."), ("text", "Yes")]),
    ],
)
def test_thinking(prompt: str, text: str, expected: list[Any]) -> None:
    assert read(text, parser("qwen_xml", prompt=prompt)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"Look.\n{XML_CALL}", [("think", "Look."), PARIS]),
        (f"Look.\n{XML_CALL}\n{XML_CALL} \n", [("think", "Look."), PARIS, PARIS]),
        (f"Look.\n{XML_CALL}\n</think>\n\n", [("think", "Look."), PARIS]),
        (f"Plan:\n{XML_CALL}\nGood.\n</think>\nYes.", [("think", f"Plan:\n{XML_CALL}\nGood."), ("text", "Yes.")]),
        (f"Plan:\n{XML_CALL}\n</think>\n\nYes.", [("think", f"Plan:\n{XML_CALL}"), ("text", "Yes.")]),
        (f"Plan:\n{XML_CALL}\n</think>\n\n{XML_CALL}", [("think", f"Plan:\n{XML_CALL}"), PARIS]),
        ("A <tool_call> is</think>Yes", [("think", "A <tool_call> is"), ("text", "Yes")]),
        ("A <tool_call></think>Yes", [("think", "A <tool_call>"), ("text", "Yes")]),
        (f"{XML_CALL[:70]}\n</think>\n\nYes", [("think", XML_CALL[:70]), ("text", "Yes")]),
        (XML_CALL[:70], [("think", XML_CALL[:70])]),
    ],
)
def test_calls_while_thinking(text: str, expected: list[Any]) -> None:
    """Calls count if the answer ends with them; otherwise they are reasoning."""
    assert read(text, parser("qwen_xml", prompt="<think>\n")) == expected


def test_thinking_may_be_left_in_the_text() -> None:
    text = "<think>\nI see.\n</think>\n\nYes."
    assert read(text, parser("qwen_xml", thinking=False)) == [("text", text)]


# --- any text, cut anywhere

PIECES = [
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<function=", "get_weather>", "<parameter=", "city>", "\n",
    "<", "</parameter>", "</function>", '{"name": "', "write", '"', ', "arguments": ', "{", "}", "[", "]", ",", ":",
    "1", " ", "text", "é", "🙂", "\\", "<|python_tag|>", XML_CALL, JSON_CALL, LLAMA_CALL, '"city": "Rome"', "null",
    "; ",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=25).map("".join)


@settings(max_examples=40)
@given(
    st.data(), TEXTS, st.sampled_from(sorted(DIALECTS)), st.sampled_from(["", "<think>\n", "<think>\n\n</think>\n\n"])
)
def test_events_do_not_depend_on_cuts(data: st.DataObject, text: str, dialect: str, prompt: str) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=12))
    whole = read(text, parser(dialect, prompt=prompt))
    assert read(text, parser(dialect, prompt=prompt), cuts) == whole
    assert read(text, parser(dialect, prompt=prompt), range(len(text))) == whole


@given(TEXTS, st.sampled_from(sorted(DIALECTS)), st.sampled_from(["", "<think>\n"]))
@example("<tool_call><tool_call>" + JSON_CALL, "hermes_json", "")
def test_no_text_is_lost(text: str, dialect: str, prompt: str) -> None:
    """All text outside calls is emitted, except white space and tags."""
    events = read(text, parser(dialect, prompt=prompt))
    calls = [e for e in events if e[0] == "call"]
    if not calls:
        given_out = "".join(e[1] for e in events if e[0] in ("text", "think"))
        for tag in ("<think>", "</think>"):
            text, given_out = text.replace(tag, ""), given_out.replace(tag, "")
        assert "".join(given_out.split()) == "".join(text.split())
    else:
        for _, name, arguments in calls:
            assert name in {tool.name for tool in TOOLS}
            if not any(e[0] == "warning" for e in events):
                assert isinstance(json.loads(arguments), dict)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda v: st.lists(v) | st.dictionaries(st.text(), v),
    max_leaves=4,
)
KEYS = st.text(st.characters(exclude_characters="<>\n", exclude_categories=["Cs", "Zs", "Zl", "Zp", "Cc"]), min_size=1)
TEXT_ONLY = st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"]))
SEGMENTS = st.lists(
    st.tuples(st.just("call"), st.dictionaries(KEYS, VALUES)) | st.tuples(st.just("text"), TEXT_ONLY.filter(str.strip)),
    max_size=6,
)


@settings(max_examples=25)
@given(SEGMENTS, st.sampled_from(["qwen_xml", "hermes_json"]))
def test_rendered_calls_are_parsed_back(segments: list[Any], dialect: str) -> None:
    """Calls rendered by the dialect, with any text between them."""
    tool = type(NOTHING)("nothing", parameters={"type": "object"})
    expected: list[Any] = []
    text = ""
    for kind, content in segments:
        if kind == "text":
            text += content
            expected.append(("text", content))
        else:
            arguments = content if dialect == "hermes_json" else {k: _plain(v) for k, v in content.items()}
            text += "\n" + DIALECTS[dialect].render_call("nothing", arguments) + "\n"
            expected.append(("call", "nothing", arguments))
    got = [e if e[0] == "text" else (*e[:2], json.loads(e[2])) for e in read(text, parser(dialect, tools=[tool]))]
    assert [_squeezed(e) for e in got] == [_squeezed(e) for e in _joined(expected)]


def _plain(value: object) -> str:
    """Without a schema all values are text, and a value must not contain its own closing tag."""
    return str(value).replace("</parameter>", "")


def _joined(events: list[Any]) -> list[Any]:
    out: list[Any] = []
    for event in events:
        if out and out[-1][0] == event[0] == "text":
            out[-1] = ("text", out[-1][1] + event[1])
        else:
            out.append(event)
    return out


def _squeezed(event: Any) -> Any:
    return (event[0], "".join(event[1].split())) if event[0] == "text" else event


def test_text_is_not_withheld_for_long() -> None:
    reader = parser("hermes_json")
    assert reader.push("Hello") == [TextDelta("Hello")]
    assert reader.push(" <") == []
    assert reader.push("b") == [TextDelta(" <b")]


def test_values_of_numbers_too_large_for_python() -> None:
    for value in ("1e999", "-1E400"):
        tool = type(WEATHER)("get_weather", parameters={"properties": {"city": {"type": "number"}}})
        (call,) = read(XML_CALL.replace("Paris", value), parser("qwen_xml", tools=[tool]))
        assert call[2] == f'{{"city": {value}}}'


def test_dialects_are_known_by_the_template() -> None:
    assert dialect_of("... <tool_call>\n<function=example> ...") == "qwen_xml"
    assert dialect_of('<tool_call>\n{"name": ') == "hermes_json"
    assert dialect_of("<|python_tag|>") == "llama_json"
    assert dialect_of("no tools") == "hermes_json"


@pytest.mark.parametrize("prompt", ["", "<think>\n"])
@pytest.mark.parametrize(
    "piece", ["<tool_call>", "<function=nothing><parameter=a>\n", '<tool_call>{"arguments": {"', "</"]
)
def test_many_tag_beginnings(piece: str, prompt: str) -> None:
    """Needs neither deep recursion nor quadratic time."""
    for end in ("", "</think>", "\n</tool_call>"):
        for dialect in TAGGED:
            assert read(piece * 500 + end, parser(dialect, prompt=prompt))
