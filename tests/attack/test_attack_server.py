"""Requests that try to end, stall or fill a server. After each attack the same server still answers."""

from __future__ import annotations

import json
import os
import reprlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from hostile_bodies import BODIES, CHAINS, CHAT, HOLDS, NESTED, SLOW, links, schema
from running import Running, started

pytestmark = pytest.mark.slow  # 45 s: large bodies and grammars that take seconds

HEALTH_S = 3.0  # measured: 0.05 s
CHAT_S = 2.0  # measured: 0.1 s


@pytest.fixture(scope="module")
def attacked() -> Iterator[Running]:
    with started("--slots", "2", "--max-queue", "16", "--body-timeout", "2") as running:
        yield running
        assert running.process.poll() is None


def cpu_s(server: Running) -> float:
    """CPU seconds of the server so far."""
    user, system = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def seconds(server: Running, ask: Callable[[], object]) -> float:
    """How long a request takes. On a busy machine: how long the server computes meanwhile, whatever it computes."""
    start, cpu = time.perf_counter(), cpu_s(server)
    ask()
    return min(time.perf_counter() - start, cpu_s(server) - cpu)


@contextmanager
def health_watched(server: Running) -> Iterator[None]:
    """Polls /health meanwhile: no answer may take longer than the limit."""
    over, slowest, n_answered = threading.Event(), [0.0], [0]

    def health() -> None:  # on a connection of its own: the server closes one that is not used for seconds
        assert httpx.get(f"{server.url}/health", timeout=60).status_code == 200

    def poll() -> None:
        while True:
            n_answered[0] += 1
            slowest[0] = max(slowest[0], seconds(server, health))
            if over.wait(0.02):
                return

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert n_answered[0] and slowest[0] < HEALTH_S, f"/health took {slowest[0]:.2f} s"


def still_answers(server: Running) -> None:
    with server.client() as client:
        assert client.post("/v1/chat/completions", json=CHAT).status_code == 200


def answered(server: Running, body: dict[str, Any]) -> httpx.Response:
    """Computations that an earlier test abandoned count against their sender until they end."""
    with server.client() as client:
        while (answer := client.post("/v1/chat/completions", json=body)).status_code == 503:
            time.sleep(0.1)
        return answer


def resident_mib(server: Running) -> float:
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * 4096 / 2**20


@pytest.mark.parametrize("name", CHAINS)
def test_chains_of_references(attacked: Running, name: str) -> None:
    """A stack overflow inside the grammar library would end the process. Some chains are harmless and compile."""
    with attacked.client() as client:
        assert client.post("/v1/chat/completions", json=CHAT | CHAINS[name]).status_code in (200, 400)
    still_answers(attacked)


def test_a_chain_in_a_tool(attacked: Running) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": links(lambda next_: {"allOf": [next_]})}}
    forced = CHAT | {"tools": [tool], "tool_choice": "required"}
    with attacked.client() as client:
        assert client.post("/v1/chat/completions", json=forced).status_code == 400
    still_answers(attacked)


@pytest.mark.parametrize("name", SLOW)
def test_grammars_that_take_long(attacked: Running, name: str) -> None:
    statuses: list[int] = []
    with health_watched(attacked):
        took = seconds(attacked, lambda: statuses.append(answered(attacked, CHAT | SLOW[name]).status_code))
    assert statuses[0] in (200, 400)
    assert took < 20
    still_answers(attacked)


def test_slow_grammars_do_not_stop_other_chats(attacked: Running) -> None:
    """Eight clients with a slow grammar each: a plain chat waits for none of them, and all end when they leave."""
    bodies = [CHAT | schema({"type": "integer", "multipleOf": 999_983 + 2 * i}) for i in range(8)]
    address = httpx.URL(attacked.url)
    sockets = []
    for body in bodies:
        data = json.dumps(body).encode()
        one = socket.create_connection((address.host, address.port or 80))
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        one.sendall(head.encode() + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        sockets.append(one)
    time.sleep(0.5)
    assert seconds(attacked, lambda: still_answers(attacked)) < 5
    for one in sockets:
        one.close()
    time.sleep(1)
    new = CHAT | schema({"type": "boolean"})  # it would wait 12 s for the eight
    with attacked.client() as client:
        assert seconds(attacked, lambda: client.post("/v1/chat/completions", json=new).raise_for_status()) < 5


@contextmanager
def chats_watched(server: Running) -> Iterator[list[float]]:
    """Sends small chats meanwhile; the list gets their seconds."""
    over: threading.Event = threading.Event()
    times: list[float] = []

    def ask() -> None:
        while not over.is_set():
            times.append(seconds(server, lambda: still_answers(server)))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield times
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("name", HOLDS)
def test_masks_that_take_long(attacked: Running, name: str) -> None:
    """The check may find the first mask cheap. The engine's thread computes no mask."""
    body = CHAT | HOLDS[name] | {"n": 4, "max_tokens": 60}
    with health_watched(attacked), chats_watched(attacked) as times:
        assert answered(attacked, body).status_code in (200, 400)
    assert max(times) < CHAT_S, sorted(times)[-3:]
    still_answers(attacked)


def test_many_slow_patterns_in_small_bodies() -> None:
    """Each client's patterns take 3 s together at most, and another key's schema passes them."""
    with started("--slots", "2", "--api-key", "a", "--api-key", "b") as server:
        results: list[int] = []

        def hold(first: int) -> None:
            patterns = [{"pattern": f"{NESTED}{{{first + i}}}"} for i in range(160)]
            with server.client(headers={"x-api-key": "a"}) as client:
                answered = client.post("/v1/chat/completions", json=CHAT | schema({"allOf": patterns}))
            results.append(answered.status_code)

        threads = [threading.Thread(target=hold, args=(1000 * i,)) for i in range(1, 4)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        with server.client(headers={"x-api-key": "b"}) as client:
            for i in range(3):
                body = CHAT | schema({"type": "object", "properties": {f"a{i}": {"type": "integer"}}})
                ask = partial(client.post, "/v1/chat/completions", json=body)
                assert seconds(server, lambda ask=ask: ask().raise_for_status()) < 3  # measured: 0.3 s
        for thread in threads:
            thread.join(60)
        assert set(results) <= {400, 503} and len(results) == 3


@pytest.mark.parametrize("name", BODIES)
def test_bodies_of_many_values(attacked: Running, name: str) -> None:
    path, make = BODIES[name]
    body = make()
    before = resident_mib(attacked)
    with health_watched(attacked), attacked.client(headers={"content-type": "application/json"}) as client:
        answered = client.post(path, content=body)
    allowed = (200, 400) if name == "fewer ids to text" else (400,)
    assert answered.status_code in allowed, answered.text[:300]
    assert resident_mib(attacked) - before < 600
    still_answers(attacked)


def test_heads_that_begin_after_an_answer(attacked: Running) -> None:
    address = httpx.URL(attacked.url)
    idle = [socket.create_connection((address.host, address.port or 80), timeout=60) for _ in range(50)]
    for one in idle:
        one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert one.recv(4096).startswith(b"HTTP/1.1 200")
    for start, one in zip((b"G", b"\r\n", b"GET /health HTTP/1.1\r\n") * 17, idle, strict=False):
        one.sendall(start)
    for one in idle:
        while one.recv(4096):  # fails after 60 s; a rest of the first answer may come
            pass


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"content-type": "application/json"}, 200),
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"content-type": "application/json", "origin": "http://localhost:8000"}, 200),
        ({"content-type": "application/json", "origin": "vscode-file://vscode-app"}, 200),
        ({"content-type": "application/json", "host": "LOCALHOST"}, 200),
        ({"content-type": "application/json", "origin": "https://page.example"}, 403),
        ({"content-type": "application/json", "origin": "http://localhost.page.example"}, 403),
        ({"content-type": "application/json", "origin": "null"}, 403),
        ({"content-type": "application/json", "host": "localhost.page.example"}, 403),
        ({}, 415),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "multipart/form-data; boundary=application/json"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_web_pages(attacked: Running, fields: dict[str, str], status: int) -> None:
    """The guard decides itself, whatever the web framework accepts."""
    with attacked.client(headers=fields) as client:
        answered = client.post("/v1/chat/completions", content=json.dumps(CHAT).encode())
        assert answered.status_code == status, answered.text


@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": {"2147483648": 1}},
        {"logit_bias": {"-1": 1}},
        {"logit_bias": {str(2**70): 1}},
        {"chat_template_kwargs": {"messages": 1}},
        {"chat_template_kwargs": {"tools": 1}},
        {"chat_template_kwargs": {"self": 1}},
        {"messages": [{"role": "user", "content": " " * 10_000_000}]},
        {"messages": [{"role": "user", "content": "a"}] * 500_000},
        {"max_tokens": 1.5},
        {"top_k": 2**40},
        {"seed": 2**80},
    ],
    ids=reprlib.repr,
)
def test_errors_of_clients(attacked: Running, fields: dict[str, Any]) -> None:
    with health_watched(attacked), attacked.client() as client:
        assert client.post("/v1/chat/completions", json=CHAT | fields).status_code == 400


def test_parameters_of_a_tool_that_are_deep_and_large(attacked: Running) -> None:
    """A template may print tools with an indent, whose length grows with the depth."""
    value: Any = list(range(100_000))
    for _ in range(100):
        value = [value]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"x": value}}}
    with health_watched(attacked), attacked.client() as client:
        assert client.post("/v1/chat/completions", json=CHAT | {"tools": [tool]}).status_code == 400
    still_answers(attacked)
