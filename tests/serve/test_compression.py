"""Prompt compression over the APIs: a server with a scorer that leaves requests alone until they ask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lucebox.measure.needle import make_documents, text_of
from lucebox.models.assets import TextAssets
from lucebox.models.resolve import resolve
from running import MODEL, Running, started
from sdks import openai

SCORER = Path(__file__).parents[1] / "data" / "recall" / "recall-scorer.Q4_0.gguf"
CONTEXT = 2048
LONG_TOKENS = 3000  # more than the context
ASKED = {"compression": {"mode": "always", "keep_ratio": 0.1, "spans": True}}
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 8}
TOOL = {
    "name": "look_up",
    "description": "Looks a number up. " * 20,
    "parameters": {"type": "object", "properties": {}},
}


@pytest.fixture(scope="module")
def scoring() -> Iterator[Running]:
    with started("--slots", "1", "--prefill-drafter", str(SCORER), context=CONTEXT) as running:
        yield running


@pytest.fixture(scope="module")
def question() -> tuple[str, str]:
    """A document with a question at its end, and the sentence that answers it."""
    (document,) = make_documents([LONG_TOKENS], 1, TextAssets.load(resolve(MODEL).path))
    asked = next(one for one in document.questions if one.kind == "vault")
    fact = next(line for line in document.text.split("\n") if asked.answer in line)
    return text_of(document, asked), fact


def kept_text(text: str, field: dict[str, Any]) -> str:
    (message,) = field["messages"]
    assert message["characters"] == len(text)
    return "".join(text[start:stop] for start, stop in message["spans"])


def test_chat(scoring: Running, question: tuple[str, str]) -> None:
    text, fact = question
    messages = [{"role": "user", "content": text}]
    client = scoring.openai()
    with pytest.raises(openai.BadRequestError, match="context"):
        client.chat.completions.create(messages=messages, **GREEDY)
    answer = client.chat.completions.with_raw_response.create(messages=messages, extra_body=ASKED, **GREEDY)
    body = json.loads(answer.text)
    field, usage = body["compression"], body["usage"]
    kept = kept_text(text, field)
    assert fact in kept and kept.startswith(text[:20]) and kept.endswith(text[-60:])
    assert usage["prompt_tokens"] == field["kept_tokens"] < CONTEXT < field["original_tokens"]
    assert usage["prompt_tokens_details"]["original_tokens"] == field["original_tokens"]
    assert body["timings"]["compression_ms"] > 0
    assert answer.headers["lucebox-compression"] == (
        f"kept={field['kept_tokens']}, original={field['original_tokens']}, keep-ratio=0.1, scorer=recall-scorer.Q4_0"
    )
    # A client that does not ask for spans gets the counts alone; a stream gets the same.
    short = {"compression": {"mode": "always", "keep_ratio": 0.1}}
    plain = client.chat.completions.create(messages=messages, extra_body=short, **GREEDY)
    assert plain.choices[0].message.content == body["choices"][0]["message"]["content"]
    assert not hasattr(plain, "compression")
    chunks = list(
        client.chat.completions.create(
            messages=messages, stream=True, stream_options={"include_usage": True}, extra_body=ASKED, **GREEDY
        )
    )
    assert chunks[-1].usage is not None and chunks[-1].usage.prompt_tokens == usage["prompt_tokens"]
    assert chunks[-1].usage.prompt_tokens_details.original_tokens == field["original_tokens"]
    assert [chunk.compression for chunk in chunks if hasattr(chunk, "compression")] == [field]
    # The model read the kept text: sent as it is, it gives the same prompt.
    alone = client.chat.completions.create(messages=[{"role": "user", "content": kept}], **GREEDY)
    assert alone.usage is not None and alone.usage.prompt_tokens == usage["prompt_tokens"]
    assert alone.choices[0].message.content == body["choices"][0]["message"]["content"]


def test_anthropic(scoring: Running, question: tuple[str, str]) -> None:
    text, fact = question
    request: dict[str, Any] = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": text}]}
    with scoring.client() as client:
        answer = client.post("/v1/messages", json=request | ASKED)
        body = answer.json()
        field, usage = body["compression"], body["usage"]
        assert fact in kept_text(text, field) and answer.headers["lucebox-compression"]
        n_input = usage["input_tokens"] + usage["cache_read_input_tokens"]
        assert (n_input, usage["original_input_tokens"]) == (field["kept_tokens"], field["original_tokens"])
        events = client.post("/v1/messages", json=request | ASKED | {"stream": True}).text.split("\n\n")
    (last,) = [json.loads(event.partition("data: ")[2]) for event in events if "message_delta" in event]
    assert last["compression"] == field and last["usage"]["original_input_tokens"] == field["original_tokens"]


def test_responses(scoring: Running, question: tuple[str, str]) -> None:
    text, fact = question
    request = {"model": MODEL, "input": text, "max_output_tokens": 4, **ASKED}
    with scoring.client() as client:
        body = client.post("/v1/responses", json=request).json()
    field = body["compression"]
    assert fact in kept_text(text, field)
    assert body["usage"]["input_tokens"] == field["kept_tokens"]
    assert body["usage"]["input_tokens_details"]["original_tokens"] == field["original_tokens"]


def test_the_next_turn_reuses_the_prefix(scoring: Running, question: tuple[str, str]) -> None:
    """Tools stay whole, the document is cut as before, and what the first turn computed is read from the cache."""
    messages = [{"role": "system", "content": "Use the tool."}, {"role": "user", "content": question[0]}]
    tools = [{"type": "function", "function": TOOL}]
    with scoring.client() as client:
        request = {**GREEDY, **ASKED, "tools": tools, "tool_choice": "none"}
        first = client.post("/v1/chat/completions", json=request | {"messages": messages}).json()
        reply = first["choices"][0]["message"]["content"]
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "And why?"}]
        second = client.post("/v1/chat/completions", json=request | {"messages": messages}).json()
    assert second["compression"]["messages"] == first["compression"]["messages"]
    assert second["timings"]["compression_ms"] == 0
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > first["usage"]["prompt_tokens"] - 128 > 100


def test_off_is_as_without_a_scorer(scoring: Running, server: Running) -> None:
    request = {**GREEDY, "messages": [{"role": "user", "content": "def add(a, b):\n" * 90}]}  # long enough to be cut
    answers = []
    for running, fields in ((server, {}), (scoring, {}), (scoring, {"compression": {"mode": "off"}})):
        with running.client() as client:
            answer = client.post("/v1/chat/completions", json=request | fields | {"logprobs": True})
        body = answer.json()
        assert "lucebox-compression" not in answer.headers
        assert set(body) == {"id", "object", "created", "model", "choices", "usage", "timings"}
        answers.append((body["choices"], body["usage"]["prompt_tokens"]))
    assert answers[0] == answers[1] == answers[2]


def test_status_and_metrics_tell(scoring: Running, question: tuple[str, str]) -> None:
    status = scoring.status()
    with scoring.client() as client:
        request = {**GREEDY, **ASKED, "messages": [{"role": "user", "content": question[0] + " "}]}
        field = client.post("/v1/chat/completions", json=request).json()["compression"]
        metrics = client.get("/metrics").text
    after = scoring.status()
    assert after["compression"] == {
        "mode": "off",
        "threshold": 32000,
        "keep_ratio": 0.05,
        "scorer": "recall-scorer.Q4_0",
        "scorer_bytes": after["compression"]["scorer_bytes"],
        "scorer_is_swapped": False,
        "scorer_is_shared": False,
    }
    n_cut = field["original_tokens"] - field["kept_tokens"]
    assert after["totals"]["cut_tokens"] - status["totals"]["cut_tokens"] == n_cut
    assert after["requests"][-1]["original_tokens"] == field["original_tokens"]
    assert f"lucebox_cut_tokens_total {after['totals']['cut_tokens']:.10g}\n" in metrics


def test_a_server_without_a_scorer_refuses(server: Running) -> None:
    with server.client() as client:
        request = {**GREEDY, "messages": [{"role": "user", "content": "Hi"}]}
        refused = client.post("/v1/chat/completions", json=request | ASKED)
        wrong = client.post("/v1/chat/completions", json=request | {"compression": {"mode": "on"}})
        off = client.post("/v1/chat/completions", json=request | {"compression": {"mode": "off"}})
    assert refused.status_code == 400 and "--prefill-drafter" in refused.json()["error"]["message"]
    assert wrong.status_code == 400 and off.status_code == 200
    assert server.status()["compression"] is None
