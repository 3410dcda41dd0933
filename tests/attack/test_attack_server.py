"""Requests that try to end, stall or fill a server. After each attack the same server still answers."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from running import ASK, Running, started

pytestmark = pytest.mark.slow  # 45 s: large bodies and grammars that take seconds

CHAT = {"messages": ASK, "max_tokens": 2}
HEALTH_S = 3.0  # measured: 0.3 s with 16 other processes on 2 cores, 0.05 s alone
CHAT_S = 2.0  # measured: 0.1 s


@pytest.fixture(scope="module")
def attacked() -> Iterator[Running]:
    with started("--slots", "2", "--max-queue", "16", "--body-timeout", "2") as running:
        yield running
        assert running.process.poll() is None


def seconds(ask: Callable[[], object]) -> float:
    start = time.perf_counter()
    ask()
    return time.perf_counter() - start


def limit(least_s: float, ask: Callable[[], object]) -> float:
    """The limit for a request during an attack: 20 times what it takes before, beside other work on the machine."""
    return max(least_s, 20 * max(seconds(ask) for _ in range(5)))


@contextmanager
def health_watched(server: Running) -> Iterator[None]:
    """Polls /health meanwhile: no answer may take longer than the limit."""
    over, slowest = threading.Event(), [0.0]

    def health() -> None:  # on a connection of its own: the server closes one that is not used for seconds
        assert httpx.get(f"{server.url}/health", timeout=60).status_code == 200

    limit_s = limit(HEALTH_S, health)

    def poll() -> None:
        while True:
            slowest[0] = max(slowest[0], seconds(health))
            if over.wait(0.02):
                return

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert 0 < slowest[0] < limit_s, f"/health took {slowest[0]:.2f} s"


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


def schema(value: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}}


def grammar(text: str) -> dict[str, Any]:
    return {"response_format": {"type": "grammar", "grammar": text}}


def links(make: Any) -> dict[str, Any]:
    """A thousand definitions, each a link to the next."""
    chain = {f"d{i}": make({"$ref": f"#/$defs/d{i + 1}"}) for i in range(999)}
    return {"$ref": "#/$defs/d0", "$defs": {**chain, "d999": {"type": "integer"}}}


CHAINS = {
    "ref": schema(links(lambda next_: next_)),
    "allOf": schema(links(lambda next_: {"allOf": [next_]})),
    "anyOf": schema(links(lambda next_: {"anyOf": [next_, {"type": "null"}]})),
    "items": schema(links(lambda next_: {"type": "array", "items": next_})),
    "properties": schema(links(lambda next_: {"type": "object", "properties": {"a": next_}, "required": ["a"]})),
    "rules": grammar("start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(4000)) + '\nr4000: "a"'),
    "terminals": grammar("start: R0\n" + "\n".join(f"R{i}: R{i + 1}" for i in range(4000)) + "\nR4000: /a/"),
    "groups": grammar("start: A\nA: /" + "(" * 20_000 + "a" + ")" * 20_000 + "/"),
}


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


SLOW = {
    "multipleOf": schema({"type": "integer", "multipleOf": 9999999}),
    "patterns": schema({"allOf": [{"type": "string", "pattern": f"a{{{i}}}b*c{{{i}}}.*x{i}"} for i in range(50)]}),
    "enum": schema({"enum": list(range(1_000_000))}),
    "repeats": grammar("start: A\nA: /" + "(" * 7 + "a{10}" + "){10}" * 7 + "/"),
}


@pytest.mark.parametrize("name", SLOW)
def test_grammars_that_take_long(attacked: Running, name: str) -> None:
    limit_s = limit(20, lambda: still_answers(attacked))
    with health_watched(attacked):
        start = time.perf_counter()
        assert answered(attacked, CHAT | SLOW[name]).status_code in (200, 400)
        assert time.perf_counter() - start < limit_s
    still_answers(attacked)


def test_slow_grammars_do_not_stop_other_chats(attacked: Running) -> None:
    """Eight clients with a slow grammar each: a plain chat waits for none of them, and all end when they leave."""
    bodies = [CHAT | schema({"type": "integer", "multipleOf": 999_983 + 2 * i}) for i in range(8)]
    address = httpx.URL(attacked.url)
    sockets = []
    limit_s = limit(5, lambda: still_answers(attacked))
    for body in bodies:
        data = json.dumps(body).encode()
        one = socket.create_connection((address.host, address.port or 80))
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        one.sendall(head.encode() + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        sockets.append(one)
    time.sleep(0.5)
    assert seconds(lambda: still_answers(attacked)) < limit_s
    for one in sockets:
        one.close()
    time.sleep(1)
    with attacked.client() as client:  # a new grammar: it would wait 12 s for the eight
        start = time.perf_counter()
        assert client.post("/v1/chat/completions", json=CHAT | schema({"type": "boolean"})).status_code == 200
        assert time.perf_counter() - start < limit_s


NESTED = "(((((a{10}){10}){10}){10}){10})"
HOLDS = {
    "grammar": grammar(f'start: "x" A\nA: /{NESTED}{{19}}/'),
    "regex": {"response_format": {"type": "regex", "regex": f"x{NESTED}{{19}}"}},
    "pattern": schema({"type": "string", "pattern": f"^x{NESTED}{{19}}$"}),
    "long prefix": grammar('start: "' + "x" * 40 + f'" A\nA: /{NESTED}{{19}}/'),
}


@contextmanager
def chats_watched(server: Running) -> Iterator[list[float]]:
    """Sends small chats meanwhile; the list gets their seconds."""
    over: threading.Event = threading.Event()
    times: list[float] = []

    def ask() -> None:
        while not over.is_set():
            times.append(seconds(lambda: still_answers(server)))

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
    limit_s = limit(CHAT_S, lambda: still_answers(attacked))
    with health_watched(attacked), chats_watched(attacked) as times:
        assert answered(attacked, body).status_code in (200, 400)
    assert max(times) < limit_s, sorted(times)[-3:]
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

        with server.client(headers={"x-api-key": "b"}) as client:
            limit_s = limit(3, lambda: client.post("/v1/chat/completions", json=CHAT))
        threads = [threading.Thread(target=hold, args=(1000 * i,)) for i in range(1, 4)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        with server.client(headers={"x-api-key": "b"}) as client:
            for i in range(3):
                start = time.perf_counter()
                small = schema({"type": "object", "properties": {f"a{i}": {"type": "integer"}}})
                assert client.post("/v1/chat/completions", json=CHAT | small).status_code == 200
                assert time.perf_counter() - start < limit_s  # measured: 0.3 s
        for thread in threads:
            thread.join(60)
        assert set(results) <= {400, 503} and len(results) == 3


def biases(n: int) -> bytes:
    return b",".join(b'"%d":[]' % i for i in range(n))


def messages(parts: bytes) -> bytes:
    return b'{"max_tokens":1,"messages":[{"role":"user","content":[' + parts + b"]}]}"


def arguments(text: bytes) -> bytes:
    quoted = text.replace(b'"', b'\\"')
    call = b'{"id":"c","type":"function","function":{"name":"f","arguments":"' + quoted + b'"}}'
    turn = b'{"role":"assistant","content":"","tool_calls":[' + call + b"]}"
    return (
        b'{"messages":[{"role":"user","content":"a"},' + turn + b',{"role":"tool","tool_call_id":"c","content":"r"}]}'
    )


def guided(kind: str, text: bytes) -> bytes:
    return b'{"prompt":"a","max_tokens":1,"guided_' + kind.encode() + b'":"' + text + b'"}'


def bodies() -> dict[str, tuple[str, bytes]]:
    n = 2_000_000
    ids = b",".join([b"5"] * n)
    return {
        "nested": ("/v1/chat/completions", b'{"messages":[' + b"[[[[[[1]]]]]]," * (n // 8) + b"1]}"),
        "deep": ("/v1/chat/completions", b'{"messages":' + b"[" * n + b"]" * n + b"}"),
        "deep and short": ("/v1/messages", b'{"messages":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}"),
        "wrong roles": ("/v1/chat/completions", b'{"messages":[' + b'{"role":"x"},' * n + b'{"role":"x"}]}'),
        "fewer wrong roles": ("/v1/responses", b'{"input":[' + b'{"role":"x"},' * 40_000 + b'{"role":"x"}]}'),
        "unknown keys": ("/v1/messages", b"{" + b",".join(b'"k%d":1' % i for i in range(n // 2)) + b"}"),
        "fewer unknown keys": ("/v1/messages", b"{" + b",".join(b'"k%d":1' % i for i in range(90_000)) + b"}"),
        "strings": ("/v1/completions", b'{"prompt":[' + b'"",' * n + b'""]}'),
        "ids": ("/v1/completions", b'{"prompt":[' + ids + b"]}"),
        "fewer ids": ("/v1/completions", b'{"prompt":[' + ids[:2_000_000] + b"5]}"),
        "ids to text": ("/v1/detokenize", b'{"tokens":[' + ids + b"]}"),
        "fewer ids to text": ("/v1/detokenize", b'{"tokens":[' + ids[:2_000_000] + b"5]}"),
        "prompts": ("/v1/completions", b'{"n":16,"prompt":[' + b'"a",' * 1_000_000 + b'"a"]}'),
        "stops": ("/v1/completions", b'{"prompt":"a","stop":[' + b'"a",' * 1_000_000 + b'"a"]}'),
        "UTF-16": ("/v1/completions", ('{"prompt":[' + "5," * n + "5]}").encode("utf-16")),
        "booleans to embed": ("/v1/embeddings", b'{"input":[' + b"true," * 1_000_000 + b"true]}"),
        "lists of booleans to embed": ("/v1/embeddings", b'{"input":[[' + b"true," * 1_000_000 + b"true]]}"),
        "numbers to embed": ("/api/embed", b'{"input":[' + b"1," * 1_000_000 + b"1]}"),
        "floats": ("/v1/completions", b'{"prompt":[' + b"1.2345678901234567e300," * 1_000_000 + b"1]}"),
        "long numbers": ("/v1/completions", b'{"prompt":[' + (b"1" * 4000 + b",") * 7500 + b"1]}"),
        "biases": ("/v1/completions", b'{"prompt":"a","logit_bias":{' + biases(90_000) + b"}}"),
        "metadata": ("/v1/responses", b'{"input":"a","metadata":{' + biases(90_000) + b"}}"),
        "parts of another type": ("/v1/messages", messages(b'{"type":"x"},' * 40_000 + b'{"type":"x"}')),
        "arguments": ("/v1/chat/completions", arguments(b'{"a":[' + b"1," * 10_000_000 + b"1]}")),
        "a schema as text": ("/v1/completions", guided("json", b"{" + b"\\n" * 10_000_000 + b"}")),
        "lines of GBNF": ("/v1/completions", guided("grammar", b"root ::= " + b"\\n" * 16_000 + b"(")),
        "text to tokenize": ("/v1/tokenize", b'{"with_pieces":true,"content":"' + b"<|im_end|>" * 2_000_000 + b'"}'),
        "control tokens": ("/v1/completions", b'{"prompt":"' + b"<|im_end|>" * 1_200_000 + b'"}'),
        "control tokens in a chat": (
            "/v1/messages",
            messages(b'{"type":"text","text":"' + b"<|im_end|>" * 1_200_000 + b'"}'),
        ),
        "an open string": ("/v1/completions", b'{"prompt":"' + b'\\"' * n),
    }


@pytest.mark.parametrize("name", bodies())
def test_bodies_of_many_values(attacked: Running, name: str) -> None:
    path, body = bodies()[name]
    before = resident_mib(attacked)
    with health_watched(attacked), attacked.client(headers={"content-type": "application/json"}) as client:
        answered = client.post(path, content=body)
    allowed = (200, 400) if name == "fewer ids to text" else (400,)
    assert answered.status_code in allowed, answered.text[:300]
    assert resident_mib(attacked) - before < 600
    still_answers(attacked)


def test_heads_that_begin_after_an_answer(attacked: Running) -> None:
    address = httpx.URL(attacked.url)
    idle = [socket.create_connection((address.host, address.port or 80), timeout=20) for _ in range(50)]
    for one in idle:
        one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert one.recv(4096).startswith(b"HTTP/1.1 200")
    for start, one in zip((b"G", b"\r\n", b"GET /health HTTP/1.1\r\n") * 17, idle, strict=False):
        one.sendall(start)
    start_s = time.perf_counter()
    for one in idle:
        while one.recv(4096):
            pass  # a rest of the first answer
    assert time.perf_counter() - start_s < 10


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
    ids=lambda fields: str(fields)[:60],
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
