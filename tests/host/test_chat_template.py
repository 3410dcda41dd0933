"""Chat templates: prompts of published templates written out by hand, message checks, sources, runaway templates."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from lucebox.chat import ChatTemplate
from lucebox.errors import FormatError, InvalidRequestError
from lucebox.text import Tokenizer
from text_data import DATA, TINY_HYBRID, read_metadata, small_vocabulary, tiny_tokenizer

USER = {"role": "user", "content": "hi"}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"city": "string"}}}
WEATHER_JSON = '{"type": "function", "function": {"name": "weather", "parameters": {"city": "string"}}}'
CALLED = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": None,
     "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": '{"city":"Köln","n":[1, 2]}'}}]},
    {"role": "tool", "content": "sunny"},
    {"role": "tool", "content": "21 C"},
]  # fmt: skip


def template(name: str) -> ChatTemplate:
    return ChatTemplate.from_file(DATA / "templates" / f"{name}.jinja")


@pytest.mark.parametrize(
    ("name", "thinking", "opening"),
    [
        ("Qwen3.5-4B", None, "<think>\n"),
        ("Qwen3.5-4B", True, "<think>\n"),
        ("Qwen3.5-4B", False, "<think>\n\n</think>\n\n"),
        ("Qwen-Qwen3-0.6B", None, ""),
        ("Qwen-Qwen3-0.6B", True, ""),
        ("Qwen-Qwen3-0.6B", False, "<think>\n\n</think>\n\n"),
    ],
)
def test_thinking(name: str, thinking: bool | None, opening: str) -> None:
    expected = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n" + opening
    assert template(name).render([USER], enable_thinking=thinking) == expected


@pytest.mark.parametrize("name", ["Qwen3.5-4B", "Qwen-Qwen3-0.6B"])
def test_earlier_thoughts_are_left_out(name: str) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nhello"},
        {"role": "user", "content": "bye"},
    ]
    assert template(name).render(messages, add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\nhello<|im_end|>\n"
        "<|im_start|>user\nbye<|im_end|>\n"
    )


def test_tools_qwen35() -> None:
    text = template("Qwen3.5-4B").render(CALLED, tools=[WEATHER])
    head, _, tail = text.partition("</IMPORTANT>")
    assert head.startswith("<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>\n")
    assert f"<tools>\n{WEATHER_JSON}\n</tools>\n\n" in head
    assert tail == (
        "\n\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nWeather?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
        "<tool_call>\n<function=weather>\n"
        "<parameter=city>\nKöln\n</parameter>\n<parameter=n>\n[1, 2]\n</parameter>\n"
        "</function>\n</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response>"
        "\n<tool_response>\n21 C\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )


def test_tools_qwen3() -> None:
    text = template("Qwen-Qwen3-0.6B").render(CALLED, tools=[WEATHER])
    assert text == (
        "<|im_start|>system\nBe brief.\n\n# Tools\n\nYou may call one or more functions to assist with the user query."
        "\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
        + WEATHER_JSON
        + "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
        '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n'
        "</tool_call><|im_end|>\n"
        "<|im_start|>user\nWeather?<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "n": [1, 2]}}\n'
        "</tool_call><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response>"
        "\n<tool_response>\n21 C\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_gguf_template() -> None:
    tiny = ChatTemplate.from_gguf(read_metadata(TINY_HYBRID), "tiny.gguf", tiny_tokenizer())
    assert tiny is not None
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert tiny.render([parts]) == "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\n"
    assert ChatTemplate.from_gguf({}, "none.gguf", tiny_tokenizer()) is None


# The ChatML template with a default system prompt, as in SmolLM2 and many other models.
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_chatml_system_prompt() -> None:
    chatml = ChatTemplate(CHATML, where="here")
    user = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    smol = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    assert chatml.render([USER]) == smol + user
    mine = {"role": "system", "content": "Mine."}
    assert chatml.render([mine, USER]) == "<|im_start|>system\nMine.<|im_end|>\n" + user


def test_named_templates_and_tokens(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "{{ bos_token }}d"}, {"name": "tool_use", "template": "t{{ eos_token }}"}]
    tokenizer = Tokenizer.from_gguf(small_vocabulary() | {"tokenizer.ggml.bos_token_id": 33}, "x")
    settings = {"chat_template": named}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    found = ChatTemplate.from_folder(tmp_path, tokenizer)
    assert found is not None
    assert found.render([USER]) == "!d"
    assert found.render([USER], tools=[WEATHER]) == "t<|end|>"
    (tmp_path / "chat_template.jinja").write_text("file {{ bos_token }}")
    found = ChatTemplate.from_folder(tmp_path, tokenizer)
    assert found is not None and found.render([USER]) == "file !"


TOOL_USE = "TOOLS {{ tools | tojson }}{{ pad_token }}{{ unk_token }}"


def test_templates_beside_the_model(tmp_path: Path) -> None:
    """Named templates next to chat_template.jinja, and the file of older processors."""
    vocabulary = {"tokenizer.ggml.padding_token_id": 34, "tokenizer.ggml.unknown_token_id": 35}
    tokenizer = Tokenizer.from_gguf(small_vocabulary() | vocabulary, "x")
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "old"}))
    found = ChatTemplate.from_folder(tmp_path, tokenizer)
    assert found is not None and found.render([USER]) == "old"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text(TOOL_USE)
    (tmp_path / "chat_template.jinja").write_text("plain")
    found = ChatTemplate.from_folder(tmp_path, tokenizer)
    assert found is not None and set(found.sources) == {"default", "tool_use"}
    assert found.render([USER]) == "plain"
    tokens = tokenizer.token(34) + tokenizer.token(35)
    assert found.render([USER], tools=[WEATHER]) == f"TOOLS [{WEATHER_JSON}]{tokens}"


def calling(arguments: object, **message: object) -> list[dict[str, object]]:
    call = {"id": "a", "type": "function", "function": {"name": "get", "arguments": arguments}}
    return [USER, {"role": "assistant", "content": None, "tool_calls": [call], **message}]


NO_TEXT = {
    "{{ messages[1].content is none }}": "True",
    "{{ messages[1].content is not none }}": "False",
    "{{ messages[1]['content'] == none }}": "True",
    "{{ messages[1].content != none }}": "False",
    "{{ messages[0].content is none }}": "False",
    "{{ messages[1].content is string }}": "True",
    "{{ 'a' + messages[1].content + 'b' }}": "ab",
    "{{ messages[1].content | trim }}|{{ messages[1].content or 'x' }}": "|x",
    # Null where a client writes what a message lacks.
    "{{ messages[1].refusal is defined }} {{ 'name' in messages[1] }}": "False False",
}


@pytest.mark.parametrize("source", NO_TEXT)
def test_content_that_is_null(source: str) -> None:
    messages = calling("{}", refusal=None, name=None, reasoning_content=None)
    assert ChatTemplate(source, where="here").render(messages) == NO_TEXT[source]


def test_no_calls_and_null_calls_are_absent() -> None:
    shown = ChatTemplate("{% for m in messages %}{{ 'tool_calls' in m }} {% endfor %}", where="here")
    answers = [{"role": "assistant", "content": "x", "tool_calls": calls} for calls in (None, [])]
    assert shown.render([USER, *answers]) == "False False False "


CALL = "messages[1].tool_calls[0].function.arguments"
ARGUMENTS = {
    "{{ %s }}": '{"city": "Köln", "n": [1]}',
    "{{ 'a' + %s + 'b' }}": 'a{"city": "Köln", "n": [1]}b',
    "{{ 'a' ~ %s }}": 'a{"city": "Köln", "n": [1]}',
    "{{ %s | tojson }}": '{"city": "Köln", "n": [1]}',
    "{{ %s | string | length }}": "26",
    "{{ %s is mapping }} {{ %s is string }}": "True False",
    "{%% for key, value in %s | items %%}{{ key }}={{ value }};{%% endfor %%}": "city=Köln;n=[1];",
    "{{ %s.city }}": "Köln",
}


@pytest.mark.parametrize("source", ARGUMENTS)
@pytest.mark.parametrize("arguments", ['{"city": "Köln", "n": [1]}', {"city": "Köln", "n": [1]}])
def test_arguments_as_text_and_as_an_object(source: str, arguments: object) -> None:
    """DeepSeek's template joins them with text, Qwen's asks for JSON, Qwen3.5's lists them."""
    text = source.replace("%s", CALL).replace("%%", "%")
    assert ChatTemplate(text, where="here").render(calling(arguments)) == ARGUMENTS[source]


def test_folder_without_template(tmp_path: Path) -> None:
    assert ChatTemplate.from_folder(tmp_path, tiny_tokenizer()) is None


LANGUAGE = {
    "{{ {'b': 'é<', 'a': 1} | tojson }}": '{"b": "é<", "a": 1}',
    "{{ 'é 👋\u2028' | tojson(ensure_ascii=true) }}": r'"\u00e9 \ud83d\udc4b\u2028"',
    "{{ {'a': [1]} | tojson(indent=1) }}": '{\n "a": [\n  1\n ]\n}',
    "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}": "01",
    "{% for a, b in [(1, 2), (3, 4)] %}{{ a ~ '-' ~ b ~ ' ' }}{% endfor %}": "1-2 3-4 ",
    "{% generation %}x{% endgeneration %}y": "xy",
    "a\n    {% if true %}\nb\n    {% endif %}\nc": "a\nb\nc",
    "{{ missing }}|{{ missing is defined }}": "|False",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}": "1",
    "{% macro f(x, y=2) %}<{{ x * y }}>{% endmacro %}{{ f(3) }}{{ f('ab', y=3) }}": "<6><ababab>",
    "{{ '%s=%d' % ('a', 5) }} {{ '{}:{}'.format(1, 'b') }} {{ [1, 2] | join(', ') }}": "a=5 1:b 1, 2",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}": "1",
    "{{ strftime_now('%Y') | length }}": "4",
    "{% set j = joiner(', ') %}{{ j() }}a{{ j() }}b": "a, b",
    "{% set c = cycler('x', 'y') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}": "xyxy",
    "{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3, '.') }}|{{ 'a'.center(3) }}|{{ '7'.zfill(3) }}": "a  |..a| a |007",
    "{{ 'a' | center(5) }}|{{ 'a b c' | wordwrap(3) }}|{{ '<a>b</a>' | striptags }}": "  a  |a b\nc|b",
    "{{ 1000 | filesizeformat }}|{{ 3000000 | filesizeformat(true) }}|{{ [1] | random }}": "1.0 kB|2.9 MiB|1",
    "{{ [1, {'a': 'b'}] | pprint }}|{{ {'a': 1} | xmlattr }}": "[1, {'a': 'b'}]| a=\"1\"",
    "{{ (5).bit_length() }}{{ 2.0.is_integer() }}{{ 'a'.isprintable() }}": "3TrueTrue",
}


@pytest.mark.parametrize("source", LANGUAGE)
def test_language(source: str) -> None:
    assert ChatTemplate(source, where="here").render([USER]) == LANGUAGE[source]


TYPED = (
    "{% for m in messages %}{{ m.role }}:"
    "{% for p in m.content %}{{ p.text if p.type == 'text' }}{% endfor %}|{% endfor %}"
)
BOTH = (
    "{% for m in messages %}"
    "{% if m.content is string %}{{ m.content }}{% else %}{{ m.content[0].text }}{% endif %}|{% endfor %}"
)
MIXED = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p['text'] }}{% endfor %}{% endif %}|{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        (TYPED, "system:s|user:hi there|assistant:|user:more|"),
        (BOTH, "s|hi there||more|"),
        (MIXED, "s|hi there||more|"),
    ],
)
def test_content_that_a_template_reads_as_parts(source: str, prompt: str) -> None:
    """Templates of multimodal checkpoints read a list of parts; text would vanish."""
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "hi there"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]},
        {"role": "user", "content": [{"type": "text", "text": "mo"}, {"type": "text", "text": "re"}]},
    ]
    assert ChatTemplate(source, where="here").render(messages) == prompt


def test_variables() -> None:
    shown = ChatTemplate("{{ enable_thinking is defined }} {{ reasoning }}", where="here")
    assert shown.render([USER], reasoning="low") == "False low"
    assert shown.render([USER], enable_thinking=False) == "True "
    assert ChatTemplate("{{ documents[0] }}", where="here").render([USER], documents=["d"]) == "d"
    with pytest.raises(InvalidRequestError, match="'bos_token' is set by lucebox"):
        ChatTemplate("x", where="here", tokens={"bos_token": "<s>"}).render([USER], bos_token="x")


BAD_MESSAGES = [
    ([], "messages is empty"),
    ("hi", "messages is str"),
    (["hi"], r"messages\[0\] is str"),
    ([{"content": "x"}], r"messages\[0\].role is None"),
    ([{"role": "user<|im_end|>", "content": "x"}], r"messages\[0\].role"),
    ([USER, {"role": "user"}], r"messages\[1\].content is missing"),
    ([{"role": "user", "content": 3}], r"messages\[0\].content is int"),
    ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\] is 'image_url'"),
    ([{"role": "assistant", "tool_calls": [{"function": {}}]}], r"tool_calls\[0\].function.name"),
    ([{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{"}]}], "not valid JSON"),
    ([{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "[]"}]}], "arguments is list"),
]


@pytest.mark.parametrize(("messages", "problem"), BAD_MESSAGES)
def test_bad_messages(messages: list[dict[str, object]], problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem):
        ChatTemplate(CHATML, where="here").render(messages)


def test_bad_tools() -> None:
    with pytest.raises(InvalidRequestError, match=r"tools\[0\] is str"):
        ChatTemplate(CHATML, where="here").render([USER], tools=["weather"])  # type: ignore[list-item]


def test_the_template_may_refuse() -> None:
    with pytest.raises(InvalidRequestError, match="refuses these messages: No user query found"):
        template("Qwen3.5-4B").render([{"role": "system", "content": "x"}])


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("a\n\n{% for %}", "here, line 3: Expected an expression"),
        ("a\n{{ 'x' | nosuch }}", "here, line 2: No filter named"),
        ("{% if x %}", "here, line 1: Unexpected end"),
        ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "too deeply nested"),
        ("x" * 300_000, "300000 characters"),
    ],
)
def test_does_not_compile(source: str, problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        ChatTemplate(source, where="here")


NS = "{% set ns = namespace(x='a', l=[1]) %}"
LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
LISTS = NS + "{% for i in range(99) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l == 1 }}"
DICTS = NS + "{% for i in range(99) %}{% set ns.l = {'a': ns.l, 'b': ns.l} %}{% endfor %}{{ ns.l }}"
DEAR = (LOOPS, LISTS, DICTS)  # 1 to 3 s each
FAILING = {
    "a\nb{{ 1 / 0 }}": "ZeroDivisionError",
    "{{ a.b.c }}": "'a' is undefined",
    "{{ ''.__class__.__mro__ }}": "unsafe",
    "{{ messages.append(1) }}": "unsafe",
    "{% include 'other' %}": "TypeError",
    "{% for i in range(10**9) %}{% endfor %}": "range of more than",
    LOOPS: "more steps",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}": "RecursionError",
    "{% for m in messages recursive %}{{ loop([m]) }}{% endfor %}": "RecursionError",
    "{{ 'a' * 10**9 }}": "builds a value",
    "{{ [1] * 10**9 }}": "builds a value",
    NS + "{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}": "builds a value",
    NS + "{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}": "builds a value",
    LISTS: "builds a value",
    DICTS: "builds a value",
    NS + "{% set ns.l = ns %}{{ ns }}": "builds a value",
    "{% set x %}{% for i in range(99999) %}" + "y" * 9999 + "{% endfor %}{% endset %}": "more steps",
    "{{ 2 ** (2 ** (2 ** 30)) }}": "bits",
    "{{ '%999999999d' | format(1) }}": "width",
    "{{ '%*d' % (999999999, 1) }}": "width",
    "{{ '{:999999999}'.format(1) }}": "width",
    "{{ '{:{}}'.format(1, 999999999) }}": "width",
    "{{ 'x'.center(999999999) }}": "builds a value",
    "{{ 'x' | center(999999999) }}": "builds a value",
    "{{ 'x'.ljust(999999999) }}": "builds a value",
    "{{ '7'.zfill(999999999) }}": "builds a value",
    "{{ ('x ' * 99999) | wordwrap(1, true, 'y' * 999) }}": "builds a value",
    "{{ ('<' * 99999) | striptags }}": "more steps",
    "{{ 'x'.expandtabs(999999999) }}": "unsafe",
    "{{ 'x'.encode() }}": "unsafe",
    "{{ (1).to_bytes(999999999) }}": "unsafe",
    "{{ 'x' | indent(999999999) }}": "indent filter",
    "{{ messages | tojson(indent=999999999) }}": "tojson filter",
    "{{ 3 | round(999999999, 'ceil') }}": "round filter",
    "{{ range(99999) | join('x' * 1000000) }}": "builds a value",
    "{{ ('x' * 1000000).join(range(99999) | map('string')) }}": "builds a value",
    "{{ ('a' * 99999) | replace('a', 'x' * 99999) }}": "builds a value",
    "{{ ('a' * 99999).replace('a', 'x' * 99999) }}": "builds a value",
    "{{ [[1], [2]] | sum(start=[]) }}": "sums lists",
    "{{ strftime_now('%999999999Y') }}": "long pattern",
}


@pytest.mark.parametrize(
    "source", [pytest.param(one, marks=pytest.mark.slow) if one in DEAR else one for one in FAILING]
)
def test_failing_template(source: str) -> None:
    hostile = ChatTemplate(source, where="here")
    began = time.process_time()
    with pytest.raises(FormatError, match=f"^here, line {2 if source[1:2] == chr(10) else 1}: .*{FAILING[source]}"):
        hostile.render([USER])
    # The slowest takes 0.9 s here; machines differ.
    assert time.process_time() - began < 15


def random_conversation(rng: random.Random) -> list[dict[str, Any]]:
    """A conversation with calls, results and thoughts in any order, of texts that templates look for."""
    pieces = ["<think>", "</think>", "<tool_response>", "</tool_response>", "\n", " ", "word", "é", "{{ x }}", "%s"]

    def text() -> str:
        return "".join(rng.choices(pieces, k=rng.randrange(6)))

    def value() -> object:
        return rng.choice([text(), rng.random(), rng.randrange(9), None, True, [text(), 1], {text(): [text()]}])

    found: list[dict[str, Any]] = [{"role": "user", "content": "q"}]
    for _ in range(rng.randrange(12)):
        message: dict[str, Any] = {"role": rng.choice(["user", "assistant", "tool"]), "content": text()}
        if message["role"] == "assistant" and rng.random() < 0.5:
            message["reasoning_content"] = text()
        if message["role"] == "assistant" and rng.random() < 0.5:
            calls = [{"name": text(), "arguments": {text(): value()}} for _ in range(rng.randint(1, 3))]
            message["tool_calls"] = [rng.choice([call, {"type": "function", "function": call}]) for call in calls]
        found.append(message)
    return [{"role": "system", "content": text()}, *found] if rng.random() < 0.5 else found


@pytest.mark.parametrize("name", ["Qwen3.5-4B", "Qwen-Qwen3-0.6B"])
def test_the_meter_changes_no_prompt(name: str) -> None:
    """Prompts are those of Jinja's own sandbox."""
    rng = random.Random()
    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    jinja.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    plain, metered = jinja.from_string((DATA / "templates" / f"{name}.jinja").read_text()), template(name)
    for _ in range(100):
        messages = random_conversation(rng)
        tools = rng.choice([None, [WEATHER]])
        expected = plain.render(messages=messages, tools=tools, add_generation_prompt=True)
        assert metered.render(messages, tools=tools) == expected, messages


def test_a_long_answer_with_its_thoughts_is_within_the_budget() -> None:
    answer = {"role": "assistant", "content": f"<think>\n{'hm ' * 30_000}\n</think>\n\n{'word ' * 20_000}"}
    prompt = template("Qwen3.5-4B").render([USER, answer, USER])
    assert "hm" not in prompt and prompt.count("word") == 20_000


def test_long_conversations_are_within_the_budget() -> None:
    turns = [{"role": ("user", "assistant")[i % 2], "content": "word " * 200} for i in range(1001)]
    assert template("Qwen3.5-4B").render(turns).count("<|im_start|>") == 1002
