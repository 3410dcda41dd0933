"""Ollama's API through Ollama's own client."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from lucebox import LLM
from lucebox.chat.thinking import ThinkingRequest
from lucebox.serve.protocols.ollama_bodies import ChatRequest, conversation_of, limits_of, options_of
from running import ASK, MODEL, Running
from sdks import ollama

BRIEF = {"temperature": 0, "num_predict": 12}
SCHEMA = {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.fixture(scope="module")
def client(server: Running) -> ollama.Client:
    return ollama.Client(host=server.url)


def test_chat(server: Running, client: ollama.Client) -> None:
    """A stream, a document and OpenAI's API have the same text."""
    parts = [*client.chat(MODEL, ASK, stream=True, options=BRIEF)]
    whole = client.chat(f"{MODEL}:latest", ASK, options=BRIEF)
    other = server.openai().chat.completions.create(model=MODEL, messages=ASK, temperature=0, max_tokens=12)
    assert whole.message.content == other.choices[0].message.content
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    for last in (parts[-1], whole):
        assert (last.done_reason, last.eval_count, last.prompt_eval_count) == ("length", 12, other.usage.prompt_tokens)
        assert last.total_duration >= last.eval_duration > 0
    assert whole.model == f"{MODEL}:latest" and parts[0].model == MODEL


def test_generate(client: ollama.Client, server: Running) -> None:
    asked = client.generate(MODEL, ASK[0]["content"], options=BRIEF)
    assert asked.response == client.chat(MODEL, ASK, options=BRIEF).message.content
    raw = client.generate(MODEL, "Once upon a time", raw=True, options=BRIEF)
    completions = server.openai().completions
    other = completions.create(model=MODEL, prompt="Once upon a time", temperature=0, max_tokens=12)
    assert raw.response == other.choices[0].text
    assert client.generate(MODEL, "").done_reason == client.chat(MODEL).done_reason == "load"


def test_options_have_an_effect(client: ollama.Client) -> None:
    stopped = client.generate(MODEL, "Once", raw=True, options={**BRIEF, "stop": ["e"], "num_predict": 60})
    assert stopped.done_reason == "stop" and "e" not in stopped.response
    seeded = [client.chat(MODEL, ASK, options={"num_predict": 9, "seed": 5}).message.content for _ in range(2)]
    assert seeded[0] == seeded[1]
    scored = client.chat(MODEL, ASK, options=BRIEF, logprobs=True, top_logprobs=2)
    assert len(scored.logprobs) == 12 and len(scored.logprobs[0].top_logprobs) == 2
    body = ChatRequest.model_validate(
        {"options": {"num_predict": -1, "repeat_penalty": 1.1, "repeat_last_n": -1, "min_p": 0.1, "top_k": 0}}
    )
    assert options_of(body) == {"repetition_penalty": 1.1, "penalty_window": -1, "min_p": 0.1, "top_k": 0}
    assert limits_of(body).max_tokens is None


@pytest.mark.parametrize("raw", [False, True])
def test_formats(client: ollama.Client, raw: bool) -> None:
    options = {"num_predict": 60, "seed": 1}
    if not raw:
        chat = client.chat(MODEL, ASK, format=SCHEMA, options=options)
        assert isinstance(json.loads(chat.message.content)["days"], int)
    answer = client.generate(MODEL, "How many days?", raw=raw, format=SCHEMA, options=options)
    assert isinstance(json.loads(answer.response)["days"], int)


def test_ignored_options_are_named(server: Running) -> None:
    body = {"messages": ASK, "stream": False, "keep_alive": "5m", "options": {**BRIEF, "num_ctx": 4096, "num_gpu": 9}}
    with server.client() as http:
        answer = http.post("/api/chat", json=body)
    assert answer.headers["lucebox-ignored"] == "keep_alive, options.num_ctx, options.num_gpu"


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded", "text/plain", "a; b=c"])
def test_json_of_any_content_type(server: Running, kind: str | None) -> None:
    """LiteLLM sends no type, `curl -d` a form's. Web pages cannot: with an Origin the type must be JSON's."""
    fields = {} if kind is None else {"content-type": kind}
    body = json.dumps({"messages": ASK, "stream": False, "options": BRIEF}).encode()
    with server.client(headers=fields) as http:
        for path, sent in (("/api/chat", body), ("/api/embed", b'{"input": 5}'), ("/api/show", b"{}")):
            answered = http.post(path, content=sent)
            assert answered.status_code == (400 if path == "/api/embed" else 200), answered.text
        assert http.post("/api/chat", content=b"messages=1").json()["error"].startswith("the body is not JSON")
        assert http.post("/api/chat", content=body, headers={"origin": "http://localhost"}).status_code == 415
        assert http.post("/v1/chat/completions", content=body).status_code == 415


def test_a_turn_with_a_call() -> None:
    call = {"function": {"name": "get_weather", "arguments": {"city": "Bonn"}}}
    body = ChatRequest.model_validate(
        {
            "messages": [
                {"role": "user", "content": "Weather?"},
                {"role": "assistant", "content": "", "thinking": "Look.", "tool_calls": [call]},
                {"role": "tool", "content": "Rain.", "tool_name": "get_weather"},
            ],
            "tools": [WEATHER],
            "think": "high",
        }
    )
    conversation = conversation_of(body)
    _, turn, result = conversation.messages
    assert turn["reasoning_content"] == "Look."
    assert json.loads(turn["tool_calls"][0]["function"]["arguments"]) == {"city": "Bonn"}
    assert (result["role"], result["content"], result["name"]) == ("tool", "Rain.", "get_weather")
    assert conversation.thinking == ThinkingRequest("on", "high")
    assert [tool.name for tool in conversation.tools] == ["get_weather"]


def test_a_conversation_with_tools_is_answered(client: ollama.Client) -> None:
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return city

    call = {"function": {"name": "get_weather", "arguments": {"city": "Bonn"}}}
    history: Sequence[dict[str, Any]] = [
        *ASK,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "Rain.", "tool_name": "get_weather"},
    ]
    answer = client.chat(MODEL, history, tools=[get_weather], options=BRIEF)
    assert answer.eval_count == 12 and answer.prompt_eval_count > 80


def test_facts(client: ollama.Client) -> None:
    (listed,), (loaded,) = client.list().models, client.ps().models
    assert listed.model == loaded.model == MODEL and loaded.context_length == 2048
    shown = client.show(MODEL)
    assert shown.modelinfo[f"{shown.modelinfo['general.architecture']}.context_length"] == 2048
    assert shown.capabilities == ["completion", "tools"] and "num_ctx 2048" in shown.parameters


def test_embeddings(server: Running) -> None:
    texts = ["def add(a, b):\n", "import os"]
    with server.client() as http:
        answer = http.post("/api/embed", json={"input": texts, "pooling": "mean", "model": MODEL}).json()
        older = http.post("/api/embeddings", json={"prompt": texts[1], "pooling": "mean"}).json()
    with LLM(MODEL, context=512, threads=1) as llm:
        want = llm.embed(texts, pooling="mean")
    np.testing.assert_allclose(answer["embeddings"], want, atol=1e-3)
    np.testing.assert_allclose(older["embedding"], want[1], atol=1e-3)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("chat", {"messages": ASK, "model": "other"}, 404, "'other' does not exist"),
        ("chat", {"messages": [{**ASK[0], "images": ["a"]}]}, 400, "messages.0.images.0: the base64 of the image is"),
        ("chat", {"messages": ASK, "options": {"num_predict": 0}}, 400, "options.num_predict: "),
        ("chat", {"messages": ASK, "options": {"mirostat": 1}}, 400, "options.mirostat: 1 is not supported"),
        ("chat", {"messages": ASK, "format": "xml"}, 400, "format: 'xml' is not supported"),
        ("chat", {"messages": [{"role": "user", "content": "a " * 3000}]}, 400, "maximum context length"),
        ("generate", {"prompt": "a", "context": [1]}, 400, "send the conversation to /api/chat"),
        ("generate", {"prompt": "a", "suffix": "b"}, 400, "suffix: 'b' is not supported"),
        ("generate", {"prompt": "a", "raw": True, "system": "b"}, 400, "no system message"),
        ("generate", {"prompt": "a", "raw": True, "images": ["aGk="]}, 400, "raw text has no images"),
        ("generate", {"prompt": "a", "images": ["aGk="]}, 400, "loaded without a vision tower"),
        ("chat", {"messages": [{"role": "system", "content": "a", "images": ["aGk="]}]}, 400, "of the role system"),
        ("embed", {"input": "a"}, 400, "not made for embeddings"),
        ("embed", {"input": []}, 400, "0 texts"),
        ("pull", {"model": "qwen3"}, 404, "Not Found"),
    ],
)
def test_errors_are_ollamas(server: Running, path: str, body: dict[str, Any], status: int, message: str) -> None:
    with server.client() as http:
        answer = http.post(f"/api/{path}", json=body)
    assert (answer.status_code, answer.json().keys()) == (status, {"error"})
    assert message in answer.json()["error"]


def test_the_client_raises_its_own_errors(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError, match="does not exist") as caught:
        client.chat("other", ASK)
    assert caught.value.status_code == 404
