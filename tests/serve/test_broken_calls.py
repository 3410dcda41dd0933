"""Calls that are malformed, quoted or cut: the call that the model meant, a broken call or text, never another call.

A broken call has arguments that are not valid JSON, and the finish reason or status of every protocol tells it apart.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
from answers import HELD_DIALECTS, TOOLS, parser, read
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lucebox.chat.dialects import DIALECTS
from lucebox.chat.dialects.broken_json import members_of
from lucebox.chat.json_text import JsonScanner
from lucebox.chat.parsing import OutputParser
from lucebox.chat.tools import Tool
from lucebox.generation.answer import Answer
from lucebox.generation.request import Finished, Item, Started
from lucebox.results import Timings, Usage
from lucebox.serve.protocols.anthropic_stream import MessageWriter
from lucebox.serve.protocols.chat_stream import ChatWriter, chat_completion
from lucebox.serve.protocols.ollama_stream import OllamaWriter
from lucebox.serve.protocols.responses_stream import ResponseWriter
from running import Running

EDIT = Tool(
    "edit",
    parameters={
        "type": "object",
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}, "line": {"type": "integer"}},
    },
)
INNER = "<tool_call>\n<function=edit>\n<parameter=path>\n/b\n</parameter>\n</function>\n</tool_call>"


def edit(**arguments: object) -> tuple[str, str, dict[str, object]]:
    return ("call", "edit", arguments)


def parsed(text: str, dialect: str = "qwen_xml", tools: Any = (EDIT, *TOOLS)) -> list[Any]:
    """The events without warnings; the arguments of whole calls decoded, those of broken calls checked."""
    events: list[Any] = []
    for event in read(text, parser(dialect, tools=tools)):
        if event[0] == "call":
            event = (*event[:2], json.loads(event[2]))
        elif event[0] == "broken":
            with pytest.raises(ValueError, match=r"Expecting|Unterminated|Invalid"):
                json.loads(event[2])
        if event[0] != "warning":
            events.append(event)
    return events


def xml(body: str, end: str = "\n</function>\n</tool_call>") -> str:
    return f"<tool_call>\n<function=edit>\n{body}{end}"


A_AND_HI = edit(path="/a", content="hi")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Closers that are slightly wrong.
        (xml("<parameter=path>\n/a\n<parameter=content>\nhi\n</parameter>"), A_AND_HI),
        (xml("<parameter=path>\n/a\n</parameter/>\n<parameter=content>\nhi\n</parameter/>"), A_AND_HI),
        (xml("<parameter=path>\n/a\n</parameter_function>\n<parameter=content>\nhi\n</parameter_function>"), A_AND_HI),
        (xml("<parameter=path>\n/a\n</parameter\n<parameter=content>\nhi\n</parameter"), A_AND_HI),
        (xml("<parameter=path>\n/a\n</path>\n<parameter=content>\nhi\n</content>"), A_AND_HI),
        (xml("<parameter=path>\n/a\n</parameter=path>\n<parameter=content>\nhi\n</parameters>"), A_AND_HI),
        (xml("<parameter=path\n/a\n</parameter>\n<parameter=content\nhi\n</parameter>"), A_AND_HI),
        (xml("<parameter=path>/a<parameter=content>hi"), A_AND_HI),
        (xml("<parameter=path>\n/a\n</parameter>\n<parameter=content>\nhi"), A_AND_HI),
        (xml("<parameter=path>\n/a\n</parameter>\n<parameter=content>\nhi\n</parameter>", "</tool_call>"), A_AND_HI),
        (xml("<parameter=path>\n/a\n</parameter>\n<parameter=content>\nhi\n</parameter>", "</function>"), A_AND_HI),
        (xml("<parameter=line>\n7\n<parameter=path>\n/a"), edit(line=7, path="/a")),
        (xml("", "</tool_call>"), edit()),
        # Values that quote tags.
        (xml(f"<parameter=content>\n{INNER}\n</parameter>"), edit(content=INNER)),
        (xml(f"<parameter=content>\nSee:\n{INNER}\n\nand {INNER}.\n</parameter>"),
         edit(content=f"See:\n{INNER}\n\nand {INNER}.")),
        (xml(f"<parameter=content>\n{xml(f'<parameter=content>{chr(10)}{INNER}{chr(10)}</parameter>')}\n</parameter>"),
         edit(content=xml(f"<parameter=content>\n{INNER}\n</parameter>"))),
        (xml("<parameter=content>\n<function=edit>\n</function>\n</parameter>"),
         edit(content="<function=edit>\n</function>")),
        (xml("<parameter=content>\n<function>\n<parameter>a</parameter>\n</function>\n\n<b/>\n</parameter>"),
         edit(content="<function>\n<parameter>a</parameter>\n</function>\n\n<b/>")),
        (xml("<parameter=content>\nif s == '<function=': '</parameter>'\n</parameter>"),
         edit(content="if s == '<function=': '</parameter>'")),
        (xml("<parameter=content>\nWrite <parameter=path> first,\n <parameter=line> next.\n</parameter>"),
         edit(content="Write <parameter=path> first,\n <parameter=line> next.")),
        (xml("<parameter=content>\n<parameter=unknown>\n</parameter>"), edit(content="<parameter=unknown>")),
    ],
)  # fmt: skip
def test_the_right_call(text: str, expected: Any) -> None:
    assert parsed(text) == [expected]
    assert parsed(f"{text}\n{text}") == [expected, expected] or not text.endswith("</tool_call>")
    if text.endswith("</tool_call>"):
        assert parsed(f"{text} Done, with <b>tags</b>.") == [expected, ("text", "Done, with <b>tags</b>.")]


CLOSING = "</parameter>\n</function>\n</tool_call>"


def test_closers_that_a_value_quotes() -> None:
    """They end no call whose own closers still follow. The value may also quote a call that begins before these."""
    value = f"x\n{CLOSING}\nIt ends so."
    text = xml(f"<parameter=content>\n{value}\n</parameter>")
    assert parsed(text) == [edit(content=value)]
    assert parsed(f"{text} Done.") == [edit(content=value), ("text", "Done.")]
    assert parsed(f"{text}\n{INNER}") == [edit(content=value), edit(path="/b")]
    for quoted in (f"x\n{CLOSING}\n{INNER}", f"x\n{CLOSING}\n<function=edit>"):
        call, rest = parsed(xml(f"<parameter=content>\n{quoted}\n</parameter>"))
        assert call == ("broken", "edit", '{"content": "x')
        assert rest == ("text", f"{quoted[2:]}\n{CLOSING}")


def test_a_parameter_that_no_schema_names() -> None:
    """The value before it may have quoted it, if it is text and the tool takes no other parameters."""
    text = xml("<parameter=content>\na\n</parameter>\n<parameter=x>\nb\n</parameter>")
    assert parsed(text) == [
        ("broken", "edit", '{"content": "a"'),
        ("text", f"<parameter=x>\nb\n{CLOSING}"),
    ]
    for more in ({"additionalProperties": {}}, {"additionalProperties": True}, {"patternProperties": {"x": {}}}):
        assert parsed(text, tools=[replace(EDIT, parameters={**EDIT.parameters, **more})]) == [edit(content="a", x="b")]
    assert parsed(text.replace("content", "line").replace("a\n", "7\n")) == [edit(line=7, x="b")]


@pytest.mark.parametrize(
    ("text", "arguments", "rest"),
    [
        (xml("<parameter=path>\n/a\n</parameter>\n<parameter=path>\n/b\n</parameter>"),
         '{"path": "/a"', "<parameter=path>"),
        (xml("<parameter=path>\n/a\n<parameter=path>\n/b\n</parameter>"), '{"path": "/a', "<parameter=path>"),
        (xml("<parameter=path>\n/a\n</parameter>\n<parameter=>\n/b\n</parameter>"), '{"path": "/a"', ">"),
        (xml(f"<parameter=line>\n7\n</parameter>\n<parameter=line>\n{INNER}\n</parameter>"),
         '{"line": 7', "<parameter=line>"),
        (xml("Write it."), "{", "Write it."),
        (xml(f"{INNER}<parameter=path>\n/a\n</parameter>"), "{", "<tool_call>"),
    ],
)  # fmt: skip
def test_a_broken_call_ends_the_calls(text: str, arguments: str, rest: str) -> None:
    """The rest is text, because the call may have quoted others."""
    call, after = parsed(text + INNER)
    assert call == ("broken", "edit", arguments)
    assert after[0] == "text" and after[1].startswith(rest) and after[1].endswith(INNER)


def test_the_value_of_an_unknown_tool_is_not_scanned_for_calls() -> None:
    text = xml(f"<parameter=content>\n{INNER}\n</parameter>").replace("=edit", "=unknown", 1)
    assert parsed(text) == [("text", text)]
    assert parsed(f"{text}\n{INNER}") == [("text", text), edit(path="/b")]
    assert parsed(text[:-30]) == [("text", text[:-30])]


@pytest.mark.parametrize(
    ("inside", "value"),
    [
        (r"C:\path", r"C:\path"), (r"\d+\.\w", r"\d+\.\w"), (r"it\'s", "it's"), (r"C:\users", r"C:\users"),
        (r"\u12", r"\u12"), (r"\u00e9", "é"), (r"a\\d\n\"", 'a\\d\n"'), ("\\\n", "\\\n"), (r"\x41", r"\x41"),
        (r"\u\\", "\\u\\"), ("raw\nline\tand tab", "raw\nline\tand tab"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dialect", ["hermes_json", "llama_json", "qwen_xml"])
def test_escapes_that_json_lacks(dialect: str, inside: str, value: str) -> None:
    key = "parameters" if dialect == "llama_json" else "arguments"
    call = f'{{"name": "edit", "{key}": {{"path": "{inside}", "line": 1}}}}'
    text = call if dialect == "llama_json" else f"<tool_call>\n{call}\n</tool_call>"
    assert parsed(text, dialect) == [edit(path=value, line=1)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<tool_call>{"name": "edit", "arguments": {"path": "/a"}}}</tool_call>', [edit(path="/a")]),
        ('<tool_call>{"name": "edit", "arguments": {}}}\n}\n</tool_call> So.', [edit(), ("text", "So.")]),
        ('<tool_call>\n{"name": "edit"}\n{"name": "edit", "arguments": {"line": 1}}\n</tool_call>',
         [edit(), edit(line=1)]),
        ('<tool_call>{"name": "edit"}}{"name": "edit"}</tool_call>', [edit(), edit()]),
        ('<tool_call>{"name": "edit", "arguments": {"line": 1}, 7}</tool_call>',
         [("broken", "edit", '{"line": 1'), ("text", "}, 7}</tool_call>")]),
        ('<tool_call>{"name": "edit", "arguments": {"line": 1, "line": 2}}</tool_call>',
         [("broken", "edit", '{"line": 1, "line'), ("text", '": 2}}</tool_call>')]),
        ('<tool_call>{"name": "edit"', [("broken", "edit", "{")]),
        ('<tool_call>{"name": "edit", "arguments": {}', [("broken", "edit", "{")]),
        ('<tool_call>{"name": "edit", "arguments": "{\\"line\\": 1}"',
         [("broken", "edit", "{")]),
        ('<tool_call>{"arguments": {"line": 1}, "name": "edit"', [("broken", "edit", '{"line": 1')]),
    ],
)  # fmt: skip
def test_objects_that_are_slightly_wrong(text: str, expected: Any) -> None:
    assert parsed(text, "hermes_json") == expected


def test_a_surplus_brace_without_tags() -> None:
    call = '{"name": "edit", "parameters": {"line": 1}}'
    assert parsed(f"{call}}}; {call}", "llama_json") == [edit(line=1)] * 2


# --- any call, cut anywhere

WORDS = st.lists(
    st.sampled_from(
        ["a", "\n", " ", "<", '"', "\\", "é", "{", "}", INNER, "</b>", "<parameter=x>", "<function=edit>", "</"]
    ),
    max_size=5,
).map("".join)  # fmt: skip
CALLS = st.fixed_dictionaries({}, optional={"path": WORDS, "content": WORDS, "line": st.integers(0, 99)})
CLOSERS = st.sampled_from(["</parameter>", "</parameter/>", "</parameter_function>", "</parameter", ""])


def written(dialect: str, arguments: dict[str, Any], closer: str) -> str:
    if dialect != "qwen_xml" or not arguments:
        return DIALECTS[dialect].render_call("edit", arguments)
    closer = closer and f"\n{closer}"
    return xml("\n".join(f"<parameter={key}>\n{value}{closer}" for key, value in arguments.items()))


@settings(max_examples=10)
@given(st.sampled_from(sorted(HELD_DIALECTS)), CALLS, CLOSERS)
@example("qwen_xml", {"path": "a", "content": f"a\n{INNER}\na"}, "</parameter>")
@example("hermes_json", {"path": INNER, "line": 1}, "")
def test_a_call_cut_anywhere(dialect: str, arguments: dict[str, Any], closer: str) -> None:
    if closer != "</parameter>":  # a value that ends with a part of a tag would join a wrong closer
        arguments = {key: re.sub("[<\n]", "", value) for key, value in arguments.items() if isinstance(value, str)}
    text = written(dialect, arguments, closer)
    (right,) = parsed(text, dialect)
    assert right == edit(**arguments)
    for n in range(text.index("edit") + 4, len(text)):
        for event in parsed(text[:n], dialect):
            assert event == right or event[0] in ("text", "broken")
            for member in members_of(event[2]) if event[0] == "broken" else ():
                value = str(arguments[member.key])
                assert value == member.value or not member.is_complete
                assert value.startswith(member.value) or member.value.startswith(value)


CLOSERS_INSIDE = st.lists(
    st.sampled_from(
        ["a", "\n", " ", "</parameter>", "</function>", "</tool_call>", f"\n{CLOSING}\n", INNER, "\n<parameter=x>\n"]
    ),
    max_size=6,
).map("".join)  # fmt: skip
NULLABLE = replace(
    EDIT, parameters={"properties": {"path": {"type": "string"}, "content": {"type": ["string", "null"]}}}
)


@settings(max_examples=60)
@given(
    st.fixed_dictionaries({"content": CLOSERS_INSIDE}, optional={"path": CLOSERS_INSIDE}),
    st.sampled_from(["", " Done.", f"\n{INNER}"]),
    st.sampled_from([EDIT, NULLABLE]),
)
def test_closers_that_match_nothing(arguments: dict[str, str], after: str, tool: Tool) -> None:
    """The call that was written, or a broken one with text after it."""
    first, *rest = parsed(written("qwen_xml", arguments, "</parameter>") + after, tools=[tool])
    if first[0] == "broken":
        assert {kind for kind, *_ in rest} == {"text"}
    else:
        assert first == edit(**arguments)
        assert rest == ([edit(path="/b")] if after.strip() == INNER else [("text", "Done.")] if after else [])


TAGS = ("<tool_call>", "<function=edit>", "<parameter=x>", "\n<parameter=x>\n", "</parameter>", "\n</parameter>\n",
        "</function>", "\n</function>\n", "</tool_call>", f"\n{CLOSING}\n", INNER)  # fmt: skip
TAGS_INSIDE = st.lists(st.sampled_from(("a", "\n", " ", *TAGS)), max_size=6).map("".join)


@settings(max_examples=80)
@given(st.fixed_dictionaries({}, optional={"path": TAGS_INSIDE, "content": TAGS_INSIDE}))
@example({"path": f"\n{CLOSING}\na<function=edit>\n<parameter=x>\n"})
@example({"content": f"{INNER}\n{CLOSING}\n\n<function=edit>\n<parameter=x>\n"})
@example(
    {"path": "<function=edit>\n<parameter=x>\n</parameter>", "content": "\n</parameter>\n</function>a\n</function>\n"}
)
@example({"path": "<function=edit><parameter=x></parameter><parameter=x>a", "content": f"\n{CLOSING}\n</function> "})
@example({"path": "<function=edit><parameter=x></parameter><parameter=x></parameter>", "content": "a\n</function>\n"})
def test_openers_that_match_nothing(arguments: dict[str, str]) -> None:
    """A value that quotes the beginning of a call: the call that was written or a broken one. Other calls come only of
    a text that is theirs too, to the letter."""
    text = written("qwen_xml", arguments, "</parameter>")
    calls = [arguments for kind, *_, arguments in parsed(text) if kind == "call"]
    assert calls in ([], [arguments]) or "\n".join(written("qwen_xml", call, "</parameter>") for call in calls) == text


@given(st.text(st.sampled_from('{}[]",:\\u0a1 \n'), max_size=30))
def test_scanned_json_is_valid(text: str) -> None:
    scanner, out = JsonScanner(), ""
    try:
        for char in text:
            piece = scanner.push(char)
            out += piece or ""
            if piece is None or scanner.done:
                break
        scanner.finish()
    except ValueError:
        return
    json.loads(out)


# --- the protocols

END = Usage(10, 20, 4), 0, Timings(0.1, 0.2, 6, 20), 0.01
BROKEN = "x" + xml("<parameter=path>\n/a\n</parameter>\n<parameter=content>\nhi", "")
MALFORMED = '<tool_call>{"name": "edit", "arguments": {"path": "/a"}, 7}</tool_call>'


def items_of(text: str, reason: Any, dialect: str = "qwen_xml") -> list[Item]:
    reader: OutputParser = parser(dialect, tools=[EDIT])
    return [Started(10, 4), *reader.push(text), *reader.finish(), Finished(reason, None, *END)]


def answer_of(items: list[Item]) -> Answer:
    answer = Answer()
    for item in items:
        answer.take(item)
    return answer


def written_by(writer: Any, items: list[Item]) -> str:
    stream: bytes = writer.open() + b"".join(writer.write(0, item) for item in items) + writer.close()
    return stream.decode()


def data_of(writer: Any, items: list[Item]) -> list[dict[str, Any]]:
    lines = [line[6:] for line in written_by(writer, items).splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def streamed_blocks(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The content of a streamed message, as a client joins it: the input of every tool_use block is whole."""
    blocks: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta" and "text" in event["delta"]:
            blocks[-1]["text"] += event["delta"]["text"]
        elif event["type"] == "content_block_delta":
            blocks[-1]["input"] = json.loads(event["delta"]["partial_json"])
    return blocks


@pytest.mark.parametrize(
    ("text", "dialect", "reason", "chat", "messages", "status"),
    [
        (BROKEN, "qwen_xml", "length", "length", "max_tokens", "incomplete"),
        (BROKEN, "qwen_xml", "stop", "stop", "end_turn", "completed"),
        (MALFORMED, "hermes_json", "stop", "stop", "end_turn", "completed"),
        ('<tool_call>{"name": "edit"', "hermes_json", "length", "length", "max_tokens", "incomplete"),
        (xml("<parameter=line>\n1\n</parameter>") + BROKEN[1:], "qwen_xml", "stop", "stop", "end_turn", "completed"),
        (xml("<parameter=line>\n1\n</parameter>"), "qwen_xml", "stop", "tool_calls", "tool_use", "completed"),
    ],
)
def test_no_client_runs_a_broken_call(
    text: str, dialect: str, reason: str, chat: str, messages: str, status: str
) -> None:
    items = items_of(text, reason, dialect)
    is_whole = chat == "tool_calls"

    assert chat_completion("m", [answer_of(items)], None)["choices"][0]["finish_reason"] == chat
    chunks = data_of(ChatWriter("m", n=1, with_usage=False, logprobs=None), items)
    assert chunks[-1]["choices"][0]["finish_reason"] == chat
    deltas = [d["function"] for c in chunks for d in c["choices"][0]["delta"].get("tool_calls", [])]
    last = max(i for i, function in enumerate(deltas) if "name" in function)
    arguments = "".join(function["arguments"] for function in deltas[last:])
    assert arguments and _is_json(arguments) is is_whole

    document = MessageWriter("m", omits_thinking=False).document([answer_of(items)])
    assert document["stop_reason"] == messages
    kinds = [block["type"] for block in document["content"]]
    assert kinds.count("tool_use") == sum(call.is_broken is False for call in answer_of(items).calls)
    assert is_whole or document["content"][kinds.index("text", kinds.count("tool_use"))]["text"]
    events = data_of(MessageWriter("m", omits_thinking=False), items)
    (delta,) = [event["delta"] for event in events if event["type"] == "message_delta"]
    assert delta["stop_reason"] == messages
    assert streamed_blocks(events) == document["content"]

    ended = OllamaWriter("chat", "m", None).document([answer_of(items)])
    assert len(ended["message"].get("tool_calls", [])) == kinds.count("tool_use")
    lines = [json.loads(line) for line in written_by(OllamaWriter("chat", "m", None), items).splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == ended["message"]["content"]
    assert sum(len(line["message"].get("tool_calls", [])) for line in lines) == kinds.count("tool_use")
    assert lines[-1]["done_reason"] == ended["done_reason"] == ("length" if reason == "length" else "stop")
    assert bool(ended["message"]["content"]) is not is_whole

    document = ResponseWriter({}, "m", {}).document([answer_of(items)])
    *_, item = [item for item in document["output"] if item["type"] == "function_call"]
    assert (document["status"], item["status"]) == (status, "completed" if is_whole else "incomplete")
    events = data_of(ResponseWriter({}, "m", {}), items)
    *_, item = [e["item"] for e in events if e["type"] == "response.output_item.done" and "arguments" in e["item"]]
    assert item["status"] == ("completed" if is_whole else "incomplete")
    n_done = sum(event["type"] == "response.function_call_arguments.done" for event in events)
    assert n_done == kinds.count("tool_use")

    assert is_whole or document["warnings"]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


# --- a broken call in the history

TAIL = [{"role": "user", "content": "Go on."}]


@pytest.mark.parametrize(
    "arguments", ['{"path": "a', "{", '{"path": "/a", "line": 1', "no JSON", "[1]", '"a"', "5", ""]
)
def test_every_protocol_accepts_broken_arguments(server: Running, arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "edit", "arguments": arguments}}
    chat = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    result = {"role": "tool", "tool_call_id": "c", "content": "Error: the arguments are not valid JSON"}
    used = {"type": "tool_use", "id": "c", "name": "edit", "input": arguments}
    output = {"type": "function_call_output", "call_id": "c", "output": "Error"}
    item = {"type": "function_call", "call_id": "c", "name": "edit", "arguments": arguments, "status": "incomplete"}
    answered = {"type": "tool_result", "tool_use_id": "c", "content": "Error", "is_error": True}
    with server.client() as client:
        for path, body in (
            ("/v1/chat/completions", {"messages": [*chat, result, *TAIL], "max_tokens": 1}),
            ("/v1/responses", {"input": [{"role": "user", "content": "Go."}, item, output], "max_output_tokens": 1}),
            (
                "/v1/messages",
                {
                    "max_tokens": 1,
                    "messages": [
                        {"role": "user", "content": "Go."},
                        {"role": "assistant", "content": [used]},
                        {"role": "user", "content": [answered]},
                    ],
                },
            ),
            ("/api/chat", {"messages": [*chat, result, *TAIL], "options": {"num_predict": 1}, "stream": False}),
        ):
            answer = client.post(path, json={"model": "claude-x", **body})
            assert answer.status_code == 200, answer.text
