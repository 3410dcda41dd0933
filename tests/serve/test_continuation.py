"""Answers that the client begins: the prompt, what the parser keeps, formats, and begun thoughts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from answers import parser, read, simple
from lucebox import LLM, Sampling
from lucebox.chat import ChatTemplate
from lucebox.chat.conversation import AnswerFormat, Conversation
from lucebox.chat.conversation_to_request import ChatModel, Limits
from lucebox.chat.json_text import respaced
from lucebox.chat.thinking import ThinkingRequest
from lucebox.chat.tools import Tool, ToolChoice
from lucebox.errors import InvalidRequestError
from lucebox.generation.events import Parser
from text_data import DATA

USER = {"role": "user", "content": "Go."}
HEAD = "<|im_start|>user\nGo.<|im_end|>\n<|im_start|>assistant\n"
EMPTY_THOUGHT = "<think>\n\n</think>\n\n"
POINT = {
    "type": "object",
    "properties": {"name": {"enum": ["a, b", "c: d"]}, "n": {"type": "integer", "maximum": 9, "minimum": 0}},
    "required": ["name", "n"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("tiny-hybrid", draft="none", threads=1, context=1024) as llm:
        yield llm


@pytest.fixture(scope="module")
def model(llm: LLM) -> ChatModel:
    return llm.chat_model(ChatTemplate.from_file(DATA / "templates" / "Qwen3.5-4B.jinja", llm.tokenizer))


def begun(text: str, **options: Any) -> Conversation:
    return Conversation([USER, {"role": "assistant", "content": text}], **options)


def parser_of(model: ChatModel, conversation: Conversation) -> Parser:
    (request,) = model.requests(conversation, Sampling(), Limits(50))
    return request.parser


@pytest.mark.parametrize("text", ["Hello", "Hello ", "def f():\n", "```python\n\n", "a <|im_end|>", "1 < 2 <"])
def test_the_prompt_ends_with_the_begun_text(model: ChatModel, text: str) -> None:
    """Also with the white space at its end, which templates trim."""
    prompt = model.prompt(begun(text))
    assert prompt.text == HEAD + EMPTY_THOUGHT + text
    assert (prompt.head, prompt.begun) == (HEAD + EMPTY_THOUGHT, text)
    tokenizer = model.model.tokenizer
    assert sum(map(tokenizer.is_special, prompt.ids.tolist())) == 3  # those that the template writes


@pytest.mark.parametrize("thinking", ["default", "off", "on"])
@pytest.mark.parametrize("written", [" world", "\n    return 1", "\n", "<think> is a tag", " </think>"])
def test_the_beginning_of_a_continuation_is_kept(model: ChatModel, written: str, thinking: Any) -> None:
    """Nothing is dropped, and tags are text: the answer has begun before."""
    reader = parser_of(model, begun("Hello", thinking=ThinkingRequest(thinking)))
    assert simple(reader.push(written) + reader.finish()) == [("text", written)]


@pytest.mark.parametrize("dialect", ["hermes_json", "llama_json", "qwen_xml"])
def test_a_new_answer_drops_white_space_and_takes_tags(dialect: str) -> None:
    assert read("\n<think>\nhm\n</think>\n\nwell", parser(dialect)) == [("think", "hm"), ("text", "well")]


@pytest.mark.parametrize("text", ["<think>\nI reason", "<think>\nI reason\n", "\n<think>I", "<think>"])
@pytest.mark.parametrize("thinking", ["default", "off", "on"])
def test_a_begun_thought_is_continued(model: ChatModel, text: str, thinking: Any) -> None:
    conversation = begun(text, thinking=ThinkingRequest(thinking))
    assert model.prompt(conversation).text == HEAD + text.lstrip()
    (request,) = model.requests(conversation, Sampling(), Limits(50))
    assert request.budget is not None
    events = request.parser.push(" more.\n</think>\n\nDone") + request.parser.finish()
    assert simple(events) == [("think", " more."), ("text", "Done")]


def test_a_begun_thought_where_the_template_opens_none(llm: LLM) -> None:
    model = llm.chat_model(ChatTemplate.from_file(DATA / "templates" / "Qwen-Qwen3-0.6B.jinja", llm.tokenizer))
    assert model.prompt(begun("<think>\nI reason")).text == HEAD + "<think>\nI reason"
    reader = parser_of(model, begun("<think>\nI reason"))
    assert simple(reader.push("\nso\n</think>\n\nDone") + reader.finish()) == [("think", "\nso"), ("text", "Done")]


def test_a_begun_thought_that_the_template_closes(llm: LLM) -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<think></think>{% endif %}"
    )
    model = llm.chat_model(ChatTemplate(source, where="here"))
    with pytest.raises(InvalidRequestError, match="template closes the thinking"):
        model.prompt(begun("<think>\nI reason"))


def test_text_after_a_whole_thought_is_continued(model: ChatModel) -> None:
    prompt = model.prompt(begun("<think>\nI reason\n</think>\n\nHello"))
    assert prompt.text == HEAD + "<think>\nI reason\n</think>\n\nHello" and prompt.begun == "Hello"
    assert model.prompt(begun("<think>\nI reason\n</think>\n\n")).text == HEAD + "<think>\nI reason\n</think>\n\n"


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"name"',
        '{"name": "a',
        '{"name": "c: d", "n":',
        '{\n  "name" : "a, b",\n  ',
        '{"name":"a, b","n": 7}',
        "{ ",
    ],
)
@pytest.mark.parametrize("thinking", ["default", "off"])
def test_a_format_goes_on_where_the_begun_text_ends(llm: LLM, model: ChatModel, text: str, thinking: str) -> None:
    form = {"type": "json_schema", "json_schema": {"schema": POINT}}
    switch = None if thinking == "default" else False
    answer = llm.chat(
        begun(text).messages,
        template=model.template,
        response_format=form,
        enable_thinking=switch,
        max_tokens=60,
        seed=1,
    )
    assert answer.finish_reason == "stop"
    assert set(json.loads(text + answer.text)) == {"name", "n"}


def test_a_format_after_a_begun_thought(llm: LLM, model: ChatModel) -> None:
    form = {"type": "json_schema", "json_schema": {"schema": POINT}}
    answer = llm.chat(
        begun("<think>\nI").messages, template=model.template, response_format=form, max_tokens=90, seed=1
    )
    assert answer.finish_reason == "stop" and set(json.loads(answer.text)) == {"name", "n"}


@pytest.mark.parametrize("text", ["Here is it: {", '{"n"', "[", '{"name": "a, b" "', '{"name": "a, b", "n": 7 7'])
def test_a_text_that_begins_no_answer_in_the_format_is_refused(model: ChatModel, text: str) -> None:
    conversation = begun(text, answer_format=AnswerFormat("json_schema", POINT))
    with pytest.raises(InvalidRequestError, match="does not begin an answer in the requested format"):
        model.requests(conversation, Sampling(), Limits(50))


def test_other_formats_go_on(model: ChatModel) -> None:
    for form in (AnswerFormat("regex", text="ab+c"), AnswerFormat("grammar", text='start: "a" "b"+ "c"')):
        (request,) = model.requests(begun("ab", answer_format=form), Sampling(), Limits(50))
        assert request.constraint is not None
        for token in model.model.tokenizer.encode("bc", add_bos=False):
            request.constraint.accept(token)
        assert request.constraint.done


def test_a_required_call_after_begun_text(model: ChatModel) -> None:
    """The call comes after the text. A call that has begun cannot be continued: its name has been given."""
    options: dict[str, Any] = {"tools": [Tool("f")], "tool_choice": ToolChoice("required")}
    (request,) = model.requests(begun("I call:\n", **options), Sampling(), Limits(50))
    assert request.constraint is not None
    for token in model.model.tokenizer.encode("<tool_call>\n<function=f>", add_bos=False):
        request.constraint.accept(token)
    with pytest.raises(InvalidRequestError, match="begins a tool call"):
        model.requests(begun("<tool_call>\n<func", **options), Sampling(), Limits(50))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a":1,"b":[true,null]}', '{"a": 1, "b": [true, null]}'),
        ('{ "a" :\n 1 , ', '{"a": 1, '),
        ('{"a:,  \\" b":', '{"a:,  \\" b":'),
        ('{"a": "open, ', '{"a": "open, '),
        ('{"a": "\\', '{"a": "\\'),
        ('{"a": 1 ', '{"a": 1 '),
        ('{"a": 1 2', '{"a": 1 2'),
        ('{"a": 1 }', '{"a": 1}'),
        ("[\n", "["),
        ("", ""),
    ],
)
def test_white_space_of_json(text: str, expected: str) -> None:
    assert respaced(text) == expected
