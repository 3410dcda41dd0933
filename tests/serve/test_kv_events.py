"""What routers read: vLLM's gauges, and the events of the prefix cache over ZeroMQ."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from lucebox import LLM
from lucebox.errors import InvalidRequestError
from lucebox.generation.prefix_cache import Node, PrefixCache, state_bytes
from lucebox.serve.kv_events import KvEvents
from running import MODEL, Running, free_port, started

msgpack = pytest.importorskip("msgpack")
zmq = pytest.importorskip("zmq")

PAGE = 64


@contextmanager
def subscribed(endpoint: str, topic: bytes = b"") -> Iterator[Any]:
    """A subscriber, connected before the publisher sends anything of interest."""
    with zmq.Context.instance().socket(zmq.SUB) as subscriber:
        subscriber.connect(endpoint)
        subscriber.setsockopt(zmq.SUBSCRIBE, topic)
        subscriber.rcvtimeo = 60_000
        yield subscriber


def received(subscriber: Any) -> tuple[str, int, dict[str, Any]]:
    topic, number, payload = subscriber.recv_multipart()
    seconds, events, rank = msgpack.unpackb(payload)
    assert seconds > 0 and rank is None and len(events) == 1
    return topic.decode(), int.from_bytes(number, "big"), events[0]


def free_endpoint() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


def test_the_gauges_of_vllm(server: Running) -> None:
    with server.client() as client:
        client.post("/v1/completions", json={"prompt": "x = 1\n" * 40, "max_tokens": 1})
        server.wait_until(running=0, waiting=0)
        lines = client.get("/metrics").text.splitlines()
        pages = client.get("/status").json()["kv_pages"]
    found = dict(line.rsplit(" ", 1) for line in lines if line.startswith("vllm:"))
    labels = f'engine="0",model_name="{MODEL}"'
    assert found[f"vllm:num_requests_waiting{{{labels}}}"] == found[f"vllm:num_requests_running{{{labels}}}"] == "0"
    assert 0 < float(found[f"vllm:kv_cache_usage_perc{{{labels}}}"]) <= 1
    assert found[f'vllm:cache_config_info{{{labels},block_size="{PAGE}",num_gpu_blocks="{pages["total"]}"}}'] == "1"


def test_events_tell_what_the_cache_holds() -> None:
    """A subscriber that adds what is stored and takes away what is removed has the pages of the cache's nodes."""
    endpoint = free_endpoint()
    with (
        LLM(MODEL, context=1024, threads=1, prefill_chunk=128, draft="none") as llm,
        subscribed(endpoint) as subscriber,
    ):
        events = KvEvents(endpoint.replace("127.0.0.1", "*"), "kv@{model}")
        listener = events.listener("m", on_device=False)
        events.publish(b"warm", {"type": "AllBlocksCleared"})
        while not subscriber.poll(50):  # the subscription has arrived once a message does
            events.publish(b"warm", {"type": "AllBlocksCleared"})
        session = llm.model.sessions.take(lambda free: free[0])
        assert session is not None
        n_bytes = 6 * session.page_bytes + 4 * state_bytes(session)
        cache = PrefixCache(n_bytes, listener=listener)
        base = llm.tokenize("x = 1\n" * 200)[:300]
        for tail in (base, base[:200] + llm.tokenize("y = 2\n" * 40), llm.tokenize("import os\n" * 100)[:400]):
            session.reset()
            list(cache.prefill(session, tail))
        want = {prefix for node in cache._parts.root("").subtree() for prefix in prefixes(node)}
        cache.close()
        events.close()
        held: dict[int, tuple[int | None, tuple[int, ...]]] = {}
        kinds: list[str] = []
        numbers: list[int] = []
        while not kinds or kinds[-1] != "AllBlocksCleared":
            topic, number, event = received(subscriber)
            if topic == "warm":
                continue
            assert topic == "kv@m"
            numbers.append(number)
            kinds.append(event["type"])
            if event["type"] == "BlockStored":
                hashes, tokens, parent = event["block_hashes"], event["token_ids"], event["parent_block_hash"]
                assert (event["block_size"], event["medium"], event["lora_id"]) == (PAGE, "CPU", None)
                assert len(tokens) == PAGE * len(hashes) and (parent is None or parent in held)
                for i, one in enumerate(hashes):
                    assert one not in held
                    held[one] = (parent, tuple(tokens[PAGE * i : PAGE * (i + 1)]))
                    parent = one
            elif event["type"] == "BlockRemoved":
                for one in event["block_hashes"]:
                    del held[one]
        llm.model.sessions.give_back(session)
    assert numbers == list(range(len(numbers)))
    assert {"BlockStored", "BlockRemoved", "AllBlocksCleared"} == set(kinds)
    assert kinds.count("BlockStored") > 2

    def whole(page: int) -> tuple[int, ...]:
        parent, tokens = held[page]
        return tokens if parent is None else whole(parent) + tokens

    assert {whole(page) for page in held} == want and 2 < len(held) == len(want)


def prefixes(node: Node) -> Iterator[tuple[int, ...]]:
    """The tokens up to the end of each page of a node."""
    before = b"".join(one.segment.ids for one in node.path())
    ids = np.frombuffer(before, np.int32).tolist()
    for end in range(node.segment.start + PAGE, node.end + 1, PAGE):
        yield tuple(ids[:end])


def test_a_server_announces_its_prompts() -> None:
    endpoint = free_endpoint()
    flags = ("--kv-events", endpoint.replace("127.0.0.1", "*"), "--kv-topic", "kv@pod@{model}", "--slots", "1")
    with started(*flags) as running, running.client() as client, subscribed(endpoint, b"kv@pod@") as subscriber:
        prompt = "x = 1\n" * 100
        ids = client.post("/tokenize", json={"content": prompt}).json()["tokens"]
        for i in range(40):  # until the subscription has arrived
            client.post("/v1/completions", json={"prompt": prompt + f"{i}", "max_tokens": 1})
            client.post("/v1/completions", json={"prompt": f"y{i} = 2\n" * 60, "max_tokens": 1})
            if subscriber.poll(50):
                break
        topic, _, event = received(subscriber)
        assert (topic, event["type"]) == (f"kv@pod@{MODEL}", "BlockStored")
        assert event["block_size"] == PAGE and set(event["token_ids"]) <= set(range(max(ids) + 10_000))


def test_endpoints_that_cannot_work() -> None:
    with pytest.raises(InvalidRequestError, match=r"--kv-events nonsense: .*; an endpoint is tcp://\*:5557"):
        KvEvents("nonsense", "t")
