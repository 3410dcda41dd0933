"""SmolLM2-135M-Instruct behind every protocol: every SDK gets the same answer to a question."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import Running, started
from sdks import anthropic, openai

NAME = "smollm2-135m"
QUESTION = "What is the capital of France?"
ASK = [{"role": "user", "content": QUESTION}]


@pytest.fixture(scope="module")
def server(smollm2: Path) -> Iterator[Running]:  # the catalog then has the model under its name
    with started("--activations", "f32", model=NAME, context=1024) as running:
        yield running


@pytest.mark.slow  # 10 s: weights of 90 MB
def test_one_answer_in_all_protocols(server: Running) -> None:
    ours, theirs = server.openai(), server.anthropic()
    chat = ours.chat.completions.create(model=NAME, messages=ASK, temperature=0, max_tokens=32)
    text = chat.choices[0].message.content or ""
    assert "Paris" in text
    assert chat.choices[0].finish_reason == "stop"
    message = theirs.messages.create(model=NAME, messages=ASK, max_tokens=32, extra_body={"temperature": 0})
    assert message.content[0].text == text  # type: ignore[union-attr]
    assert message.stop_reason == "end_turn"
    response = ours.responses.create(model=NAME, input=QUESTION, temperature=0, max_output_tokens=32)
    assert response.output_text == text
    assert response.status == "completed"
    stream = ours.chat.completions.create(model=NAME, messages=ASK, temperature=0, max_tokens=32, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text


@pytest.mark.slow  # 4 s; tests of reuse on small models are everyday ones
def test_a_conversation_reuses_its_prefix(server: Running) -> None:
    client = server.openai()
    first = {"role": "user", "content": f"{'Here is a long list of things. ' * 30}\n{QUESTION}"}
    one = client.chat.completions.create(model=NAME, messages=[first], temperature=0, max_tokens=16)
    turns = [first, {"role": "assistant", "content": one.choices[0].message.content}, *ASK]
    two = client.chat.completions.create(model=NAME, messages=turns, temperature=0, max_tokens=16)
    assert one.usage is not None and two.usage is not None and two.usage.prompt_tokens_details is not None
    cached = two.usage.prompt_tokens_details.cached_tokens or 0
    assert one.usage.prompt_tokens - 64 <= cached < two.usage.prompt_tokens


CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
GREEDY = {"model": NAME, "temperature": 0, "max_tokens": 64}


@pytest.mark.slow  # 7 s
def test_tools_and_forms(server: Running) -> None:
    """The template has no tool support: tools, call and result are rendered as text."""
    client = server.openai()
    tool = {"type": "function", "function": {"name": "capital", "description": "Looks up.", "parameters": CITY}}
    called = client.chat.completions.create(
        messages=ASK, tools=[tool], tool_choice="required", parallel_tool_calls=False, **GREEDY
    )
    message = called.choices[0].message
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments).keys() == {"city"}
    result = {"role": "tool", "tool_call_id": call.id, "content": "The capital of France is Paris."}
    turns = [*ASK, message.model_dump(exclude_none=True), result]
    after = client.chat.completions.create(messages=turns, tools=[tool], tool_choice="none", **GREEDY)
    assert "Paris" in (after.choices[0].message.content or "")

    theirs = {"name": "capital", "description": "Looks up.", "input_schema": CITY}
    choice = {"type": "any", "disable_parallel_tool_use": True}
    with server.anthropic().messages.stream(
        model=NAME, messages=ASK, tools=[theirs], tool_choice=choice, max_tokens=64, extra_body={"temperature": 0}
    ) as stream:
        blocks = stream.get_final_message().content
    (use,) = [block for block in blocks if block.type == "tool_use"]
    assert use.input == json.loads(call.function.arguments)

    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": CITY, "strict": True}}
    answer = client.chat.completions.create(messages=ASK, response_format=form, **GREEDY)
    assert json.loads(answer.choices[0].message.content or "") == {"city": "Paris"}


@pytest.mark.slow  # 10 s
def test_disconnects_and_oversized_requests(server: Running) -> None:
    async def leave() -> None:
        stream = await server.async_openai().chat.completions.create(
            model=NAME, messages=ASK, stream=True, max_tokens=900, extra_body={"ignore_eos": True}
        )
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()

    asyncio.run(leave())
    record = server.wait_until(running=0, waiting=0)["requests"][-1]
    assert record["outcome"] == "cancelled" and record["generated_tokens"] < 900
    long = [{"role": "user", "content": "word " * 2000}]
    with pytest.raises(openai.BadRequestError, match="maximum context length is 1024 tokens"):
        server.openai().chat.completions.create(messages=long, **GREEDY)
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        server.anthropic().messages.create(model=NAME, messages=long, max_tokens=64)
