"""SmolLM2-135M-Instruct behind every protocol: one question, asked of each SDK, has one answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lucebox import HubError, catalog
from running import Running, started

NAME = "smollm2-135m"
QUESTION = "What is the capital of France?"
ASK = [{"role": "user", "content": QUESTION}]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    try:
        catalog.fetch(NAME)
    except HubError as error:
        pytest.skip(f"the weights cannot be fetched here: {error}")
    with started("--activations", "f32", model=NAME, context=1024) as running:
        yield running


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


def test_a_conversation_reuses_what_it_began_with(server: Running) -> None:
    client = server.openai()
    first = {"role": "user", "content": f"{'Here is a long list of things. ' * 30}\n{QUESTION}"}
    one = client.chat.completions.create(model=NAME, messages=[first], temperature=0, max_tokens=16)
    turns = [first, {"role": "assistant", "content": one.choices[0].message.content}, *ASK]
    two = client.chat.completions.create(model=NAME, messages=turns, temperature=0, max_tokens=16)
    assert one.usage is not None and two.usage is not None and two.usage.prompt_tokens_details is not None
    cached = two.usage.prompt_tokens_details.cached_tokens or 0
    assert one.usage.prompt_tokens - 64 <= cached < two.usage.prompt_tokens
