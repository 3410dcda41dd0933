"""Images through the three protocols of the server."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from running import Running
from sdks import ollama

QUESTION = "What number is in the image?"


@pytest.fixture(scope="module")
def image(data: Path) -> str:
    """Base64 of an image of the number 941."""
    return base64.b64encode((data / "tiny-vl" / "images" / "02-number-96x64.png").read_bytes()).decode()


def chat(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}], "temperature": 0, **more}


def text_of(part: str) -> dict[str, Any]:
    return {"type": "text", "text": part}


def part_of(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "high"}}


def test_chat_completions(seeing: Running, image: str) -> None:
    part = part_of(f"data:image/png;base64,{image}")
    answer = seeing.openai().chat.completions.create(model="x", **chat(part, text_of(QUESTION)))
    assert answer.choices[0].message.content == "941"
    assert answer.usage.prompt_tokens == 26
    stream = seeing.openai().chat.completions.create(model="x", stream=True, **chat(text_of(QUESTION), part))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == "941"


def test_a_conversation_computes_only_what_is_new(seeing: Running, image: str) -> None:
    client = seeing.openai().chat.completions
    messages = [{"role": "user", "content": [part_of(f"data:image/png;base64,{image}"), text_of(QUESTION)]}]
    first = client.create(model="x", messages=messages, temperature=0)
    messages += [first.choices[0].message.to_dict(), {"role": "user", "content": "Read the number."}]
    second = client.create(model="x", messages=messages, temperature=0)
    assert second.usage.prompt_tokens_details.cached_tokens >= 26


def test_responses(seeing: Running, image: str) -> None:
    parts = [
        {"type": "input_image", "image_url": f"data:image/png;base64,{image}", "detail": "auto"},
        {"type": "input_text", "text": QUESTION},
    ]
    client = seeing.openai().responses
    answer = client.create(model="x", input=[{"role": "user", "content": parts}], temperature=0)
    assert answer.output_text == "941" and answer.usage.input_tokens == 26
    again = client.create(model="x", previous_response_id=answer.id, input="Read the number.", temperature=0)
    assert again.usage.input_tokens > 26 and again.usage.input_tokens_details.cached_tokens >= 26


def test_messages(seeing: Running, image: str) -> None:
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image}}
    content = [block, {"type": "text", "text": QUESTION}]
    messages: list[Any] = [{"role": "user", "content": content}]
    client = seeing.anthropic()
    answer = client.messages.create(model="x", max_tokens=16, messages=messages, extra_body={"temperature": 0})
    assert answer.content[0].text == "941"
    usage = answer.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0) == 26
    assert client.messages.count_tokens(model="x", messages=messages).input_tokens == 26


def test_ollama(seeing: Running, image: str) -> None:
    """The text of chat completions, from a stream and a document, with an image as bytes and as base64."""
    client = ollama.Client(host=seeing.url)
    options = {"temperature": 0, "num_predict": 12}
    message = {"role": "user", "content": QUESTION, "images": [base64.b64decode(image)]}
    whole = client.chat("x", [message], options=options)
    assert (whole.message.content, whole.prompt_eval_count) == ("941", 26)
    parts = client.chat("x", [{**message, "images": [image]}], stream=True, options=options)
    assert "".join(part.message.content or "" for part in parts) == "941"
    assert client.generate("x", QUESTION, images=[image], options=options).response == "941"
    assert "vision" in client.show("x").capabilities


def test_results_of_tools_may_be_images(seeing: Running, server: Running, image: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    result = [part_of(f"data:image/png;base64,{image}")]
    messages = [
        {"role": "user", "content": QUESTION},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": result},
    ]
    counts = []
    for running in (seeing, server):  # a model that reads only text sees a placeholder
        answer = running.openai().chat.completions.create(model="claude-x", messages=messages, max_tokens=1)
        counts.append(answer.usage.prompt_tokens)
    assert counts[0] != counts[1]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://example.org/a.png", "messages.0.content.0: images are not fetched from URLs"),
        ("file:///etc/passwd", "not a data URL"),
        ("/etc/passwd", "not a data URL"),
        ("data:image/png;base64,aGVsbG8=", "messages.0.content.0: not an image: expected a PNG, JPEG or WebP file"),
        ("data:image/png;base64,a", "the base64 of the image is damaged"),
    ],
)
def test_urls_that_are_refused(seeing: Running, url: str, message: str) -> None:
    with seeing.client() as client:
        reply = client.post("/v1/chat/completions", json=chat(part_of(url), text_of(QUESTION)))
    assert reply.status_code == 400 and message in reply.json()["error"]["message"]


def test_urls_of_messages_are_refused(seeing: Running) -> None:
    block = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    with seeing.client() as client:
        reply = client.post("/v1/messages", json={"max_tokens": 1, "messages": [{"role": "user", "content": [block]}]})
    assert reply.status_code == 400 and "images are not fetched from URLs" in reply.json()["error"]["message"]


def test_paths_are_no_images(seeing: Running) -> None:
    with seeing.client() as client:
        reply = client.post("/v1/chat/completions", json=chat({"type": "image", "image": "/etc/passwd"}))
    assert reply.status_code == 400 and "'image' is not supported" in reply.json()["error"]["message"]


def test_a_model_without_a_tower_says_so(server: Running, image: str) -> None:
    part = part_of(f"data:image/png;base64,{image}")
    with server.client() as client:
        reply = client.post("/v1/chat/completions", json=chat(part, text_of(QUESTION)))
    assert reply.status_code == 400 and "was loaded without a vision tower" in reply.json()["error"]["message"]


def test_images_of_other_roles_are_refused(seeing: Running, image: str) -> None:
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image}}
    body = {"messages": [{"role": "assistant", "content": [block]}], "max_tokens": 1}
    with seeing.client() as client:
        reply = client.post("/v1/messages", json=body)
        assert reply.status_code == 400 and "images are not allowed in a message of" in reply.json()["error"]["message"]
        item = {"role": "system", "content": [{"type": "input_image", "image_url": f"data:image/png;base64,{image}"}]}
        reply = client.post("/v1/responses", json={"input": [item, {"role": "user", "content": "a"}]})
        assert reply.status_code == 400 and "images are not allowed in a system" in reply.json()["error"]["message"]
