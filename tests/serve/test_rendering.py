"""Conversations rendered by real chat templates, compared with prompts written by hand."""

from __future__ import annotations

from typing import Any

import pytest
from lucebox.chat import ChatTemplate
from lucebox.chat.dialects import DIALECTS
from lucebox.chat.messages import checked_messages
from lucebox.chat.parsing import OutputParser
from lucebox.chat.profiles import Profile, profile_for
from lucebox.chat.rendering import for_template, with_broken_calls
from lucebox.chat.tools import Tool, ToolChoice
from test_chat_template import CHATML
from text_data import DATA, tiny_tokenizer

LOOK = Tool("look", "Looks.", {"type": "object", "properties": {"at": {"type": "string"}, "n": {"type": "integer"}}})
SHOWN = (
    '{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", '
    '"properties": {"at": {"type": "string"}, "n": {"type": "integer"}}}}}'
)
TURN: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "What is there?"},
    {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "Two places.",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at": "left", "n": 2}'}},
            {"id": "b", "type": "function", "function": {"name": "look", "arguments": '{"at": "right"}'}},
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": "a cat"},
    {"role": "tool", "tool_call_id": "b", "content": "Error: dark"},
]
LATE = {"role": "system", "content": "It is late."}


def shipped(name: str) -> ChatTemplate:
    return ChatTemplate.from_file(DATA / "templates" / f"{name}.jinja")


# Written for this test in the style of Llama 3.1: its tags, calls as JSON, results with role ipython.
LLAMA = """{{- bos_token }}
{%- if tools %}{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{% endif -%}
{{- 'Answer with {"name": function name, "parameters": {}} to call one of:\\n' }}
{%- for tool in tools %}{{- tool | tojson }}{{- '\\n' }}{% endfor %}{{- '<|eot_id|>' }}{% endif -%}
{%- for m in messages %}{%- if not (tools and loop.first and m.role == 'system') %}
{{- '<|start_header_id|>' + ('ipython' if m.role == 'tool' else m.role) + '<|end_header_id|>\\n\\n' }}
{%- if m.tool_calls %}{{- '{"name": "' + m.tool_calls[0].function.name + '", "parameters": ' }}
{{- m.tool_calls[0].function.arguments | tojson }}{{- '}' }}{% else %}{{- m.content }}{% endif -%}
{{- '<|eot_id|>' }}{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif -%}
"""
TEMPLATES = {
    "qwen35": lambda: shipped("Qwen3.5-4B"),
    "qwen3": lambda: shipped("Qwen-Qwen3-0.6B"),
    "smollm2": lambda: ChatTemplate(CHATML, where="smollm2"),
    "llama": lambda: ChatTemplate(LLAMA, where="llama", tokens={"bos_token": "<|begin_of_text|>"}),
}


def profile(name: str) -> Profile:
    return profile_for("llama" if name == "smollm2" else name, TEMPLATES[name](), tiny_tokenizer())


def prompt(name: str, messages: list[dict[str, Any]], tools: list[Tool], **options: Any) -> str:
    shown, schemas = for_template(profile(name), checked_messages(messages), [tool.for_template() for tool in tools])
    return TEMPLATES[name]().render(shown, tools=schemas, **options)


def test_qwen35() -> None:
    text = prompt("qwen35", TURN, [LOOK])
    head, _, rest = text.partition("<|im_end|>\n")
    assert head.startswith(
        f"<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>\n{SHOWN}\n"
    )
    assert head.endswith("</IMPORTANT>\n\nBe brief.\n\nBe kind.")
    assert rest == (
        "<|im_start|>user\nWhat is there?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nTwo places.\n</think>\n\nI look.\n\n"
        "<tool_call>\n<function=look>\n<parameter=at>\nleft\n</parameter>\n<parameter=n>\n2\n</parameter>\n</function>\n"
        "</tool_call>\n<tool_call>\n<function=look>\n<parameter=at>\nright\n</parameter>\n</function>\n</tool_call>"
        "<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\na cat\n</tool_response>\n<tool_response>\nError: dark\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )


def test_qwen35_late_system_messages_become_user_messages() -> None:
    assert not profile("qwen35").takes_late_system
    messages = [TURN[0], TURN[2], LATE, {"role": "assistant", "content": "A cat."}, LATE, TURN[2]]
    assert prompt("qwen35", messages, [], enable_thinking=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is there?<|im_end|>\n"
        "<|im_start|>user\nIt is late.<|im_end|>\n<|im_start|>assistant\nA cat.<|im_end|>\n"
        "<|im_start|>user\nIt is late.<|im_end|>\n<|im_start|>user\nWhat is there?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_a_late_system_message_joins_the_tool_result_before_it() -> None:
    """As a user message it would be a new question, and the template would drop the thinking of the tool loop."""
    rendered = prompt("qwen35", [*TURN, LATE, LATE], [LOOK])
    assert rendered.endswith(
        "<tool_response>\nError: dark\n\nIt is late.\n\nIt is late.\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n"
    )
    assert "<think>\nTwo places.\n</think>" in rendered
    nothing = {**TURN[5], "content": ""}
    assert "<tool_response>\nIt is late.\n</tool_response>" in prompt("qwen35", [*TURN[:5], nothing, LATE], [LOOK])


def test_qwen3() -> None:
    assert prompt("qwen3", [*TURN, LATE, TURN[2]], [LOOK]) == (
        "<|im_start|>system\nBe brief.\n\nBe kind.\n\n# Tools\n\nYou may call one or more functions to assist with the "
        "user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n"
        f"<tools>\n{SHOWN}\n</tools>\n\n"
        "For each function call, return a json object with function name and arguments within <tool_call></tool_call> "
        'XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nWhat is there?<|im_end|>\n"
        "<|im_start|>assistant\nI look.\n"
        '<tool_call>\n{"name": "look", "arguments": {"at": "left", "n": 2}}\n</tool_call>\n'
        '<tool_call>\n{"name": "look", "arguments": {"at": "right"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\na cat\n</tool_response>\n<tool_response>\nError: dark\n</tool_response>"
        "<|im_end|>\n<|im_start|>system\nIt is late.<|im_end|>\n<|im_start|>user\nWhat is there?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_template_without_tools() -> None:
    assert prompt("smollm2", TURN, [LOOK]) == (
        "<|im_start|>system\nBe brief.\n\nBe kind.\n\nYou may call functions. These are their signatures:\n<tools>\n"
        f"{SHOWN}\n</tools>\n\nTo call one, write its name and arguments in this form, and nothing after it:\n"
        '<tool_call>\n{"name": "function_name", "arguments": {"argument_name": "value"}}\n</tool_call>\n\n'
        "What it returned will be given to you as <tool_response>.<|im_end|>\n"
        "<|im_start|>user\nWhat is there?<|im_end|>\n"
        "<|im_start|>assistant\nI look.\n\n"
        '<tool_call>\n{"name": "look", "arguments": {"at": "left", "n": 2}}\n</tool_call>\n'
        '<tool_call>\n{"name": "look", "arguments": {"at": "right"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\na cat\n</tool_response>\n<tool_response>\nError: dark\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompt("smollm2", TURN[2:3], [LOOK]).startswith("<|im_start|>system\nYou may call functions.")
    assert "SmolLM, trained by" in prompt("smollm2", TURN[2:3], [])


def test_llama() -> None:
    one = {**TURN[3], "content": "", "tool_calls": TURN[3]["tool_calls"][:1]}
    assert prompt("llama", [*TURN[:3], one, TURN[4]], [LOOK]) == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.\n\nBe kind.\n\n"
        f'Answer with {{"name": function name, "parameters": {{}}}} to call one of:\n{SHOWN}\n<|eot_id|>'
        "<|start_header_id|>user<|end_header_id|>\n\nWhat is there?<|eot_id|>"
        '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "look", "parameters": {"at": '
        '"left", "n": 2}}<|eot_id|>'
        "<|start_header_id|>ipython<|end_header_id|>\n\na cat<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert profile("llama").dialect == "llama_json"


@pytest.mark.parametrize("name", ["qwen35", "qwen3", "smollm2"])
def test_calls_written_by_a_template_are_parsed_back(name: str) -> None:
    """The parser reads the calls of an earlier turn from the rendered prompt."""
    rendered = prompt(name, TURN, [LOOK], add_generation_prompt=False)
    answer = rendered.split("<|im_start|>assistant\n")[1].split("<|im_end|>")[0]
    reader = OutputParser(profile(name), [LOOK], ToolChoice(), True, "")
    events = reader.push(answer) + reader.finish()
    starts = [event for event in events if type(event).__name__ == "ToolStart"]
    arguments = "".join(event.delta for event in events if type(event).__name__ == "ToolArguments")  # type: ignore[union-attr]
    assert len(starts) == 2 and arguments == '{"at": "left", "n": 2}{"at": "right"}'


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("name", "arguments", "written"),
    [
        ("qwen35", '{"at": "le', "<tool_call>\n<function=look>\n<parameter=at>\nle"),
        ("qwen35", '{"at": "a\\nb", "n": 12',
         "<tool_call>\n<function=look>\n<parameter=at>\na\nb\n</parameter>\n<parameter=n>\n12"),
        ("qwen35", '{"at": "a\\', "<tool_call>\n<function=look>\n<parameter=at>\na"),
        ("qwen35", '{"at": "a\\u00', "<tool_call>\n<function=look>\n<parameter=at>\na"),
        ("qwen35", '{"at"', "<tool_call>\n<function=look>"),
        ("qwen35", "{", "<tool_call>\n<function=look>"),
        ("qwen35", "[1]", "<tool_call>\n<function=look>\n[1]"),
        ("qwen3", '{"at": "le', '<tool_call>\n{"name": "look", "arguments": {"at": "le'),
        ("smollm2", "[1]", '<tool_call>\n{"name": "look", "arguments": [1]'),
        ("llama", '{"at": "le', '{"name": "look", "parameters": {"at": "le'),
    ],
)  # fmt: skip
def test_a_broken_call_is_shown_as_it_was(name: str, arguments: str, written: str) -> None:
    """Also whole calls before it, and the messages after it."""
    broken = {"id": "b", "type": "function", "function": {"name": "look", "arguments": arguments}}
    for calls in ([broken], [TURN[3]["tool_calls"][0], broken]):
        turn = {"role": "assistant", "content": "I look.", "tool_calls": calls}
        messages = with_broken_calls(profile(name), [TURN[2], turn, TURN[4], TURN[2]])
        whole = DIALECTS[profile(name).dialect].render_call("look", {"at": "left", "n": 2})
        before = "" if len(calls) == 1 else f"{whole}\n"
        assert f"I look.\n\n{before}{written}" in prompt(name, messages, [LOOK])


def test_whole_calls_are_left_to_the_template() -> None:
    assert with_broken_calls(profile("qwen35"), TURN) == TURN


def test_a_longer_conversation_extends_the_prompt() -> None:
    for name in ("qwen3", "smollm2", "llama"):
        history = TURN[:3]
        for _ in range(3):
            before = prompt(name, history, [LOOK], add_generation_prompt=False)
            history = [*history, LATE, {"role": "assistant", "content": "Yes."}, TURN[2]]
            assert prompt(name, history, [LOOK]).startswith(before)
