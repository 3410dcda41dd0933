"""Routers from PyPI in front of two servers. Prefixes stay on their replica; a killed replica loses no request of the
other one.

The routers are found on PATH: pip install sglang-router vllm-router.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import pytest
from lucebox import LLM
from running import MODEL, Running, free_port, started

CHAT = "/v1/chat/completions"
TOPICS = ["alpha", "beta", "gamma", "delta"]
# Arguments before the flags, and where the router lists its workers.
ROUTERS = {"sglang-router": (["launch"], "/workers", "workers"), "vllm-router": ([], "/list_workers", "urls")}

pytestmark = pytest.mark.slow  # the routers are no dependencies, and wait seconds for their workers


@contextmanager
def routed(name: str, workers: list[Running]) -> Iterator[httpx.Client]:
    """A client of a router in front of the workers."""
    if shutil.which(name) is None:
        pytest.skip(f"no {name} on PATH")
    port = str(free_port())
    flags = ["--policy", "cache_aware", "--host", "127.0.0.1", "--port", port, "--prometheus-port", str(free_port())]
    before, listing, key = ROUTERS[name]
    command = [name, *before, "--worker-urls", *(one.url for one in workers), *flags]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            for _ in range(300):
                with suppress(httpx.TransportError):
                    found = client.get(listing)
                    if found.status_code == 200 and len(found.json()[key]) == len(workers):
                        break
                time.sleep(0.1)
            yield client
    finally:
        process.kill()
        process.wait()


def talk(topic: str, n_turns: int) -> list[dict[str, str]]:
    """A conversation about a topic that begins with a long message of its own."""
    messages = [{"role": "user", "content": f"{topic} is the topic. " * 30}]
    for i in range(1, n_turns):
        messages += [{"role": "assistant", "content": f"{topic} {i}"}, {"role": "user", "content": f"more {i}"}]
    return messages


def body(topic: str, n_turns: int) -> dict[str, Any]:
    return {"model": MODEL, "messages": talk(topic, n_turns), "max_tokens": 4, "temperature": 0}


@pytest.mark.parametrize("name", ROUTERS)
def test_prefixes_stay_on_their_replica(name: str) -> None:
    """Conversations that begin together spread by load. vllm-router may move one once or twice before it stays."""
    flags = ("--slots", "4", "--draft", "none")
    with started(*flags) as first, started(*flags) as second, routed(name, [first, second]) as client:
        assert client.get("/v1/models").json()["data"][0]["id"] == MODEL

        def turn(topic: str, n_turns: int) -> float:
            """The share of cached prompt tokens."""
            asked = body(topic, n_turns) | {"max_tokens": 60, "ignore_eos": True}
            usage = client.post(CHAT, json=asked).raise_for_status().json()["usage"]
            return float(usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"])

        with ThreadPoolExecutor(len(TOPICS)) as threads:
            turns = [list(threads.map(lambda topic, n=n: turn(topic, n), TOPICS)) for n in range(1, 6)]
        n_requests = [len(one.status()["requests"]) for one in (first, second)]
    cached = [share for shares in turns[-2:] for share in shares]
    assert sum(n_requests) == 20 and min(n_requests) >= 5, n_requests  # both replicas work
    assert sum(share > 0.4 for share in cached) >= 7, turns  # of 8


@pytest.mark.parametrize("name", ROUTERS)
def test_a_killed_replica_loses_no_request_of_the_other(name: str) -> None:
    with LLM(MODEL, context=2048, threads=1, prefill_chunk=64, draft="none") as llm:
        want = {topic: llm.chat(talk(topic, 2), max_tokens=4, temperature=0).text for topic in TOPICS}
    flags = ("--slots", "2", "--draft", "none")
    with started(*flags) as survivor, ThreadPoolExecutor(4) as threads:
        killed = started(*flags)
        other = killed.__enter__()
        with routed(name, [survivor, other]) as client:

            def ask(i: int) -> tuple[str, int, str]:
                topic = TOPICS[i % len(TOPICS)]
                answer = client.post(CHAT, json=body(topic, 2))
                text = answer.json()["choices"][0]["message"]["content"] if answer.status_code == 200 else answer.text
                return topic, answer.status_code, text

            before = list(threads.map(ask, range(12)))
            assert [status for _, status, _ in before] == [200] * 12
            assert all(one.status()["requests"] for one in (survivor, other))
            running = [threads.submit(ask, i) for i in range(24)]
            time.sleep(0.2)
            other.process.kill()
            during = [one.result() for one in running]
            after = list(threads.map(ask, range(24)))
        with pytest.raises(AssertionError):  # its exit is not clean
            killed.__exit__(None, None, None)
        n_survivor = sum(record["outcome"] in ("stop", "length") for record in survivor.status()["requests"])
    whole = [one for one in [*before, *during, *after] if one[1] == 200]
    assert all(text == want[topic] for topic, _, text in whole)
    assert [status for _, status, _ in after] == [200] * 24
    assert n_survivor >= len(after)
    # Only requests that the killed replica had begun may have failed: at most its slots and queue at that moment.
    assert sum(status != 200 for _, status, _ in during) <= 4
