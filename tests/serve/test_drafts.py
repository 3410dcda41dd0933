"""Speculation as clients and operators see it. The server runs in this process, so that an oracle can draft."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from lucebox import LLM, Sampling
from lucebox.serve.app import create_app
from lucebox.serve.settings import ServeSettings
from oracle import plain_text, with_oracle

MODEL, TOKENS, N_RIGHT = "tiny-hybrid", 22, 3
OPTIONS: dict[str, Any] = {"context": 512, "threads": 1, "activations": "f32", "kv": "f32"}
ASK = [{"role": "user", "content": "write function add: adds two numbers"}]
TEXT = "def fibonacci(n):\n"
GREEDY = {"temperature": 0, "ignore_eos": True}
# A verify at the first token and at every fourth after it, of three right tokens and a wrong one. The last token is not
# computed.
VERIFIES = 6
ACCEPTED = TOKENS - 1 - VERIFIES
DRAFTED = VERIFIES * (N_RIGHT + 1)

Send = Callable[..., httpx.Response]


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM(MODEL, draft="none", **OPTIONS) as plain:
        prompts = [plain.tokenize(text) for text in (TEXT, plain.render(ASK))]
    known = [plain_text(MODEL, prompt, TOKENS + N_RIGHT + 1, **OPTIONS) for prompt in prompts]
    with LLM(MODEL, draft="suffix", **OPTIONS) as drafting:
        yield with_oracle(drafting, known, N_RIGHT)


@pytest.fixture
def send(llm: LLM) -> Iterator[Send]:
    """Sends one request to the server."""
    app = create_app(llm, ServeSettings(slots=1))

    def one(path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        async def exchange() -> httpx.Response:
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:
                return await (client.get(path) if body is None else client.post(path, json=body))

        answer = asyncio.run(exchange())
        assert answer.status_code == 200, answer.text
        return answer

    yield one
    app.state.server.close()


def samples(send: Send) -> dict[str, float]:
    rows = [line.rsplit(" ", 1) for line in send("/metrics").text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in rows}


def check_timings(timings: dict[str, float]) -> None:
    assert (timings["verifies"], timings["drafted_tokens"], timings["accepted_tokens"]) == (VERIFIES, DRAFTED, ACCEPTED)
    assert timings["tokens_per_step"] == pytest.approx(TOKENS / (TOKENS - ACCEPTED), abs=1e-3)


PREDICTIONS = {"accepted_prediction_tokens": ACCEPTED, "rejected_prediction_tokens": DRAFTED - ACCEPTED}


def test_chat_completions(send: Send) -> None:
    body = {"messages": ASK, "max_tokens": TOKENS, **GREEDY}
    document = send("/v1/chat/completions", body).json()
    assert document["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0, **PREDICTIONS}
    check_timings(document["timings"])
    with LLM(MODEL, draft="none", **OPTIONS) as plain:
        text = plain.chat(ASK, Sampling(max_tokens=TOKENS, ignore_eos=True)).text
    assert document["choices"][0]["message"]["content"].strip() == text.strip()

    stream = send("/v1/chat/completions", body | {"stream": True, "stream_options": {"include_usage": True}}).text
    last = json.loads(stream.split("data: ")[-2])
    assert last["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0, **PREDICTIONS}
    check_timings(last["timings"])


def test_completions(send: Send) -> None:
    document = send("/v1/completions", {"prompt": TEXT, "max_tokens": TOKENS, **GREEDY}).json()
    assert document["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0, **PREDICTIONS}
    check_timings(document["timings"])
    two = send("/v1/completions", {"prompt": TEXT, "max_tokens": TOKENS, "n": 2, **GREEDY}).json()
    assert two["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 2 * ACCEPTED


def test_responses(send: Send) -> None:
    body = {"input": ASK[0]["content"], "max_output_tokens": TOKENS, "temperature": 0, "store": False}
    document = send("/v1/responses", body).json()
    usage, timings = document["usage"], document["timings"]
    assert usage["output_tokens_details"]["accepted_prediction_tokens"] == timings["accepted_tokens"] > 0
    rejected = timings["drafted_tokens"] - timings["accepted_tokens"]
    assert usage["output_tokens_details"]["rejected_prediction_tokens"] == rejected


def test_messages_have_the_counts_in_their_timings(send: Send) -> None:
    """Anthropic's usage has no such fields."""
    body = {"model": MODEL, "messages": ASK, "max_tokens": TOKENS, "temperature": 0}
    document = send("/v1/messages", body).json()
    assert document["timings"]["accepted_tokens"] > 0
    assert not [name for name in document["usage"] if "prediction" in name]


def test_metrics_and_status(send: Send) -> None:
    assert send("/status").json()["totals"]["verifies"] == samples(send)["lucebox_verifies_total"] == 0
    for _ in range(2):
        send("/v1/completions", {"prompt": TEXT, "max_tokens": TOKENS, **GREEDY})
    found = samples(send)
    assert found["lucebox_verifies_total"] == 2 * VERIFIES
    assert found["lucebox_drafted_tokens_total"] == 2 * DRAFTED
    assert found["lucebox_accepted_tokens_total"] == 2 * ACCEPTED
    # The last verify of the second request has not ended: no token follows it.
    ended = 2 * VERIFIES - 1
    assert found["lucebox_accepted_length_count"] == found['lucebox_accepted_length_bucket{le="3"}'] == ended
    assert found['lucebox_accepted_length_bucket{le="2"}'] == 1
    last = ACCEPTED - (VERIFIES - 1) * N_RIGHT
    assert found["lucebox_accepted_length_sum"] == 2 * ACCEPTED - last

    status = send("/status").json()
    assert status["draft"] == "suffix"
    totals = {name: status["totals"][name] for name in ("verifies", "drafted_tokens", "accepted_tokens")}
    assert totals == {"verifies": 2 * VERIFIES, "drafted_tokens": 2 * DRAFTED, "accepted_tokens": 2 * ACCEPTED}
    for record in status["requests"]:
        assert (record["verifies"], record["drafted_tokens"], record["accepted_tokens"]) == (
            VERIFIES,
            DRAFTED,
            ACCEPTED,
        )


def test_a_prediction_reaches_the_session_of_its_request(llm: LLM, send: Send) -> None:
    content = "def add(a, b):\n    return a + b  # <|im_end|>\n"
    parts = [{"type": "text", "text": content[:9]}, {"type": "text", "text": content[9:]}]
    body = {"messages": ASK, "max_tokens": 2, **GREEDY}
    for given in (content, parts):
        send("/v1/chat/completions", body | {"prediction": {"type": "content", "content": given}})
    send("/v1/chat/completions", body)
    ids = llm.tokenizer.encode(content, special=False, add_bos=False)
    assert llm.tokenizer.id_of("<|im_end|>") not in ids
    assert llm.pool.free[0].expected == [ids, ids, []]  # type: ignore[attr-defined]


def test_a_prediction_is_drafted_from() -> None:
    """The suffix drafter has nothing else to draft from: a short prompt, and no earlier output."""
    with LLM(MODEL, draft="none", **OPTIONS) as plain:
        answer = plain.generate(TEXT, Sampling(max_tokens=60, ignore_eos=True))
    accepted = []
    for prediction in ("", answer.text):
        with LLM(MODEL, draft="suffix", draft_budget=8, **OPTIONS) as llm:
            result = llm.generate(TEXT, Sampling(max_tokens=60, ignore_eos=True), prediction=prediction)
            assert result.ids == answer.ids and result.usage.drafts is not None
            accepted.append(result.usage.drafts.accepted_tokens)
    assert accepted[1] > accepted[0] and accepted[1] > 40, accepted


def test_a_prediction_for_a_generation(llm: LLM) -> None:
    sampling = Sampling(max_tokens=1)
    llm.generate(TEXT, sampling, prediction="def")
    llm.chat(ASK, sampling, prediction="word " * 600)
    llm.generate(TEXT, sampling)
    short, long, none = llm.pool.free[0].expected  # type: ignore[attr-defined]
    assert (short, len(long), none) == (llm.tokenize("def"), 512, [])


def test_the_default_drafter_writes_the_text_of_plain_decoding() -> None:
    texts = []
    for options in ({}, {"draft": "none"}):
        with LLM(MODEL, **(OPTIONS | options)) as llm:
            app = create_app(llm, ServeSettings(slots=1))

            async def answers(app: Any = app) -> list[str]:
                transport = httpx.ASGITransport(app=app)
                async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:
                    bodies = [{"prompt": TEXT * 2, "max_tokens": 60, "seed": 5, "temperature": t} for t in (0, 0.8)]
                    documents = [(await client.post("/v1/completions", json=body)).json() for body in bodies]
                return [document["choices"][0]["text"] for document in documents]

            try:
                texts.append(asyncio.run(answers()))
            finally:
                app.state.server.close()
    assert texts[0] == texts[1] and all(texts[0])


def test_without_drafts_there_are_zeros() -> None:
    with LLM(MODEL, draft="none", **OPTIONS) as plain:
        app = create_app(plain, ServeSettings(slots=1))
        server = app.state.server
        try:
            assert server.metrics.drafts.total("verified") == 0
            assert "lucebox_accepted_length_count 0" in [*server.metrics.lines()]
        finally:
            server.close()


def test_outputs_of_one_key_are_no_drafts_of_another() -> None:
    with LLM(MODEL, draft="suffix", draft_budget=7, **OPTIONS) as llm:
        app = create_app(llm, ServeSettings(slots=1, api_key=("first", "second")))

        async def timings(key: str) -> dict[str, float]:
            client = httpx.AsyncClient(
                transport=httpx.ASGITransport(app=app),
                base_url="http://127.0.0.1",
                timeout=60,
                headers={"x-api-key": key},
            )
            async with client:
                answer = await client.post("/v1/completions", json={"prompt": TEXT, "max_tokens": TOKENS, **GREEDY})
            return dict(answer.json()["timings"])

        accepted = [asyncio.run(timings(key))["accepted_tokens"] for key in ("first", "second", "first", "second")]
        app.state.server.close()
    assert accepted[0] == accepted[1] < accepted[2] == accepted[3]
