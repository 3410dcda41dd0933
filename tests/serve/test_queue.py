"""Disconnects and the queue. Each step waits until /status shows the previous one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from running import ASK, SLOW, WHOLE_CONTEXT, Running, started

CHAT = "/v1/chat/completions"
ENDLESS = {
    "messages": ASK,
    "max_tokens": WHOLE_CONTEXT - 100,
    "temperature": 0,
    "ignore_eos": True,
}  # a minute of SLOW work
LONG_PROMPT = {"messages": [{"role": "user", "content": "word " * (WHOLE_CONTEXT - 100)}], "max_tokens": 1}


@asynccontextmanager
async def asked(server: Running, body: dict[str, Any], **status: int) -> AsyncIterator[None]:
    """A request in progress, from the status that shows it until its client leaves."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        request = asyncio.create_task(client.post(CHAT, json=body))
        await asyncio.to_thread(server.wait_until, **status)
        yield
        assert not request.done()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request


@pytest.mark.first_case
@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
def test_a_disconnect_cancels_the_request(patient: Running, is_stream: bool) -> None:
    async def leave() -> None:
        async with asked(patient, ENDLESS | {"stream": is_stream}, running=1):
            pass

    before = patient.wait_until(running=0, waiting=0)["totals"]["generated_tokens"]
    asyncio.run(leave())
    after = patient.wait_until(running=0, waiting=0)
    assert after["requests"][-1]["outcome"] == "cancelled"
    assert after["totals"]["generated_tokens"] - before < ENDLESS["max_tokens"]


@pytest.mark.slow  # 3 s
def test_a_disconnect_while_queued_or_in_prefill(patient: Running) -> None:
    async def leave() -> None:
        async with asked(patient, ENDLESS | {"stream": True}, running=1):
            async with asked(patient, LONG_PROMPT, running=2):
                pass
            await asyncio.to_thread(patient.wait_until, running=1)
            async with (
                asked(patient, ENDLESS | {"stream": True}, running=2),
                asked(patient, ENDLESS, running=2, waiting=1),
            ):
                pass

    patient.wait_until(running=0, waiting=0)
    asyncio.run(leave())
    records = patient.wait_until(running=0, waiting=0)["requests"][-4:]
    assert [record["outcome"] for record in records] == ["cancelled"] * 4
    assert records[0]["generated_tokens"] == 0  # cancelled in prefill
    assert sum(record["generated_tokens"] == 0 for record in records[1:]) >= 1  # and one while queued
    assert records[0]["prompt_tokens"] > WHOLE_CONTEXT - 200


def test_a_full_queue() -> None:
    with started("--slots", "1", "--max-queue", "1", *SLOW, context=WHOLE_CONTEXT) as server, server.client() as client:
        body = ENDLESS | {"stream": True}
        with client.stream("POST", CHAT, json=body), client.stream("POST", CHAT, json=body):
            server.wait_until(running=1, waiting=1)
            refused = client.post(CHAT, json=body)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["code"] == "server_overloaded"
            other = client.post("/v1/messages", json={"messages": ASK, "max_tokens": 1})
            assert other.status_code == 529
            assert other.json()["error"]["type"] == "overloaded_error"
            assert client.get("/health/ready").status_code == 200
        server.wait_until(running=0, waiting=0)


@pytest.mark.slow  # 3 s; every day, the heartbeats of a held call
def test_heartbeats_while_waiting() -> None:
    flags = ("--slots", "1", "--heartbeat", "0.1", *SLOW)
    with started(*flags, context=WHOLE_CONTEXT) as server, server.client() as client:
        with client.stream("POST", CHAT, json=ENDLESS | {"stream": True}):
            server.wait_until(running=1)
            brief = {"messages": ASK, "max_tokens": 1, "stream": True}
            with client.stream("POST", "/v1/messages", json=brief) as waits:
                lines = waits.iter_lines()
                first = [next(lines), next(lines), next(lines)]
        assert first == [": keep-alive", "", "event: ping"]
        server.wait_until(running=0, waiting=0)


@pytest.mark.slow  # 3 s: a server
def test_heartbeats_while_a_call_is_held() -> None:
    """A stream of messages sends a call once it is whole."""
    schema = {"type": "object", "properties": {"text": {"type": "string", "minLength": 4000}}, "required": ["text"]}
    body = {
        "messages": ASK,
        "max_tokens": 400,
        "stream": True,
        "tools": [{"name": "write", "input_schema": schema}],
        "tool_choice": {"type": "any"},
        "thinking": {"type": "disabled"},
    }
    with started("--slots", "1", "--heartbeat", "0.02", "--draft", "none") as server, server.client() as client:
        events = [line for line in client.post("/v1/messages", json=body).text.splitlines() if "event: " in line]
    start, block = events.index("event: message_start"), events.index("event: content_block_start")
    assert set(events[start + 1 : block]) == {"event: ping"} and block - start > 3
