"""Streams that go on without their client: /v1/streams."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from lucebox import LLM
from lucebox.serve import kept_streams
from running import ASK, Running, in_process, started

FIELDS: dict[str, Any] = {"messages": ASK, "stream": True, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def client(server: Running) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def named() -> dict[str, str]:
    return {kept_streams.HEADER: secrets.token_hex(16)}


def body_of(client: httpx.Client, header: dict[str, str]) -> httpx.Response:
    return client.get(f"/v1/streams/{header[kept_streams.HEADER]}")


def test_a_stream_is_read_again(client: httpx.Client) -> None:
    header = named()
    first = client.post("/v1/chat/completions", json=FIELDS | {"max_tokens": 12}, headers=header)
    again = body_of(client, header)
    assert first.text.endswith("data: [DONE]\n\n")
    assert again.text == first.text
    assert again.headers["content-type"] == first.headers["content-type"]
    taken = client.post("/v1/chat/completions", json=FIELDS, headers=header)
    assert taken.status_code == 400
    assert "already" in taken.json()["error"]["message"]


def test_a_stream_goes_on_without_its_client(server: Running) -> None:
    header = named()
    with server.client() as client:
        with client.stream("POST", "/v1/chat/completions", json=FIELDS | {"max_tokens": 400}, headers=header) as answer:
            next(answer.iter_bytes())
        whole = body_of(client, header).text
        assert whole.endswith("data: [DONE]\n\n")
        assert server.wait_until(running=0)["requests"][-1]["generated_tokens"] == 400


def test_a_deleted_stream_ends(patient: Running) -> None:
    header = named()
    with patient.client() as client:
        sent = FIELDS | {"max_tokens": 8000, "temperature": 2}
        with client.stream("POST", "/v1/chat/completions", json=sent, headers=header) as answer:
            parts = answer.iter_text()
            next(parts)
            gone = client.delete(f"/v1/streams/{header[kept_streams.HEADER]}")
            assert gone.json()["deleted"] is True
            assert '"code":"cancelled"' in "".join(parts)
        assert patient.wait_until(running=0)["requests"][-1]["outcome"] == "cancelled"
        assert body_of(client, header).status_code == 404


@pytest.mark.slow  # 3 s
def test_each_key_sees_its_own_streams() -> None:
    with started("--api-key", "one", "--api-key", "two") as server, server.client() as client:
        header = named()
        one, two = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
        client.post("/v1/chat/completions", json=FIELDS | {"max_tokens": 1}, headers=header | one)
        path = f"/v1/streams/{header[kept_streams.HEADER]}"
        assert client.get(path, headers=one).status_code == 200
        assert client.get(path, headers=two).status_code == client.delete(path, headers=two).status_code == 404
        assert client.get(path).status_code == 401


@pytest.mark.parametrize("name", ["short", "with space" * 3, "a" * 65])
def test_a_name_must_be_long_and_plain(client: httpx.Client, name: str) -> None:
    answer = client.post("/v1/chat/completions", json=FIELDS, headers={kept_streams.HEADER: name})
    assert answer.status_code == 400
    assert kept_streams.HEADER in answer.json()["error"]["message"]


def test_usage_so_far(client: httpx.Client) -> None:
    n = 200
    options = {"include_usage": True, "continuous_usage_stats": True}
    text = client.post("/v1/chat/completions", json=FIELDS | {"max_tokens": n, "stream_options": options}).text
    events = [httpx.Response(200, text=line[6:]).json() for line in text.splitlines() if line.startswith("data: {")]
    counts = [event["usage"]["completion_tokens"] for event in events if event["usage"]]
    assert counts == sorted(counts)
    assert counts[-1] == n
    assert len(set(counts)) > 3  # a busy machine may send several tokens in one event
    assert len({event["usage"]["prompt_tokens"] for event in events if event["usage"]}) == 1
    alone = {"continuous_usage_stats": True}
    refused = client.post("/v1/chat/completions", json=FIELDS | {"stream_options": alone})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "stream_options.continuous_usage_stats"


@pytest.fixture(scope="module")
def own() -> Iterator[str]:
    """The URL of a server in this process."""
    with LLM("tiny-hybrid", context=8192, threads=1, isa="scalar", draft="none") as llm, in_process(llm) as url:
        yield url


def test_a_stream_that_nobody_reads_ends(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_streams, "UNREAD_S", 0.3)
    header = named()
    with httpx.Client(base_url=own, timeout=60) as client:
        sent = FIELDS | {"max_tokens": 8000, "temperature": 2}
        with client.stream("POST", "/v1/chat/completions", json=sent, headers=header) as answer:
            parts = answer.iter_bytes()
            next(parts)
            time.sleep(1)  # it has a reader
            assert client.get("/status").json()["running"] == 1
        while client.get("/status").json()["running"]:
            time.sleep(0.1)
        assert body_of(client, header).status_code == 404
        assert client.get("/status").json()["requests"][-1]["outcome"] == "cancelled"


@pytest.mark.slow  # 3 s
def test_ended_streams_are_dropped_at_a_limit(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = [named() for _ in range(4)]
    with httpx.Client(base_url=own, timeout=60) as client:

        def ask(header: dict[str, str], n: int) -> str:
            return client.post("/v1/chat/completions", json=FIELDS | {"max_tokens": n}, headers=header).text

        monkeypatch.setattr(kept_streams, "MAX_ENDED", 2)
        for header in headers:
            ask(header, 2)
        assert [body_of(client, header).status_code for header in headers] == [404, 404, 200, 200]

        size = len(body_of(client, headers[-1]).content)
        monkeypatch.setattr(kept_streams, "MAX_BYTES", 4 * size)
        last = named()
        assert ask(last, 2).endswith("[DONE]\n\n")
        text = ask(named(), 100)  # more than all may have
        assert "kept streams have more than" in text
        assert "[DONE]" not in text
        assert body_of(client, last).status_code == 404
