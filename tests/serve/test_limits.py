"""Requests that the guard refuses, and the informational routes."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from lucebox.errors import InvalidRequestError
from lucebox.serve.settings import ServeSettings
from running import ASK, MODEL, Running, started

KEYS = ("first-key", "second-key")
CHAT = {"messages": ASK, "max_tokens": 1}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    file = tmp_path_factory.mktemp("keys") / "keys.txt"
    file.write_text(f"# a comment\n{KEYS[1]}\n")
    flags = ["--api-key", KEYS[0], "--api-key-file", str(file), "--cors-origin", "https://page.example"]
    with started(*flags, "--max-body", "2000", "--body-timeout", "0.5", "--model-name", "mine") as running:
        yield running


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
def test_every_key_is_accepted(guarded: Running, key: str, header: str) -> None:
    value = f"Bearer {key}" if header == "authorization" else key
    with guarded.client(headers={header: value}) as client:
        assert client.post("/v1/chat/completions", json=CHAT).status_code == 200


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer first-ke"}, {"x-api-key": "first-keyy"}], ids=str)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/metrics", "/v1/models", "/nowhere"])
def test_requests_without_a_key_are_refused(guarded: Running, headers: dict[str, str], path: str) -> None:
    with guarded.client(headers=headers) as client:
        refused = client.post(path, json=CHAT)
        assert refused.status_code == 401
        error = refused.json()["error"]
        assert error["type"] == ("authentication_error" if "messages" in path else "invalid_request_error")
        assert client.get("/health").json() == {"status": "ok"}


def test_a_body_that_is_too_large(guarded: Running) -> None:
    large = {"messages": [{"role": "user", "content": "x" * 4000}]}
    with guarded.client(headers={"x-api-key": KEYS[0]}) as client:
        assert client.post("/v1/chat/completions", json=large).status_code == 413
        chunked = client.post("/v1/messages", content=iter([b"x" * 1500, b"x" * 1500]))
    assert chunked.status_code == 413
    assert chunked.json()["error"]["type"] == "request_too_large"


def connected(server: Running) -> socket.socket:
    address = httpx.URL(server.url)
    return socket.create_connection((address.host, address.port or 80), timeout=60)


def test_head_timeout(guarded: Running) -> None:
    with connected(guarded) as silent:
        assert silent.recv(1) == b""  # closed by the server
    with connected(guarded) as slow:
        slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n")
        assert slow.recv(1) == b""


def test_body_timeout(guarded: Running) -> None:
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nx-api-key: {KEYS[0]}\r\nContent-Length: 999\r\n\r\n{{"
    with connected(guarded) as slow:
        slow.sendall(head.encode())
        assert slow.recv(100).startswith(b"HTTP/1.1 408 ")
        with pytest.raises((BrokenPipeError, ConnectionError)):  # the server closes the connection
            for _ in range(1000):
                time.sleep(0.05)
                slow.sendall(b"1")


def test_a_head_that_is_too_large(guarded: Running) -> None:
    with connected(guarded) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 1_000_000 + b"\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 400 ")


def test_a_body_larger_than_a_head(server: Running) -> None:
    """One read may return more body bytes than a head may have."""
    body = json.dumps({"messages": [{"role": "user", "content": "word " * 40_000}]}).encode()
    fields = ["Host: localhost", "Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close"]
    with connected(server) as client, client.makefile("rb") as answer:
        client.sendall("\r\n".join(["POST /v1/messages HTTP/1.1", *fields, "", ""]).encode())
        time.sleep(0.1)
        client.sendall(body)
        assert b"max_tokens" in answer.read()  # the missing field


def test_a_prompt_that_is_far_too_long_is_not_tokenized(server: Running) -> None:
    """Tokenizing it would take seconds, and gigabytes."""
    text = Path(__file__).read_text() * 600
    with server.client() as client:
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
            ("/v1/completions", {"prompt": text}),
            ("/completion", {"prompt": [1, text]}),
        ):
            before = status_mib(server)
            error = client.post(path, json=body).json()["error"]
            assert "maximum context length is 2048 tokens" in error["message"], error
            assert status_mib(server) - before < 100
        counted = client.post("/v1/messages/count_tokens", json={"messages": [{"role": "user", "content": text}]})
        assert counted.json()["input_tokens"] > 10_000
        assert client.post("/v1/tokenize", json={"content": text}).status_code == 400


def status_mib(server: Running) -> float:
    return int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * 4096 / 2**20


def test_cors_lets_the_listed_origin_in(guarded: Running) -> None:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "x-api-key"}
    with guarded.client() as client:
        listed = client.options("/v1/messages", headers=asked | {"origin": "https://page.example"})
        other = client.options("/v1/messages", headers=asked | {"origin": "https://other.example"})
    assert listed.headers["access-control-allow-origin"] == "https://page.example"
    assert "access-control-allow-origin" not in other.headers


def test_cors_is_off_by_default(server: Running) -> None:
    with server.client() as client:
        answered = client.post("/v1/chat/completions", json=CHAT, headers={"origin": "https://page.example"})
    assert "access-control-allow-origin" not in answered.headers


def test_a_foreign_host_name_is_refused(server: Running) -> None:
    """DNS rebinding: a page's own name resolves to this machine."""
    with server.client() as client:
        assert client.get("/v1/models", headers={"host": "page.example"}).status_code == 403
        for own in ("localhost:80", "LOCALHOST"):
            assert client.get("/v1/models", headers={"host": own}).status_code == 200


def test_pages_of_other_sites_are_refused(server: Running) -> None:
    """A browser names the site of a page in Origin, even where it needs no permission to send the request."""
    with server.client() as client:
        for origin, status in {"https://page.example": 403, "null": 403, server.url: 200, "app://editor": 200}.items():
            assert client.post("/v1/chat/completions", json=CHAT, headers={"origin": origin}).status_code == status
        assert client.post("/v1/chat/completions", content=json.dumps(CHAT)).status_code == 415


def test_a_grammar_that_overflows_a_stack(server: Running) -> None:
    chain = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}]} for i in range(999)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**chain, "d999": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with server.client() as client:
        refused = client.post("/v1/chat/completions", json=CHAT | {"response_format": form})
        assert (refused.status_code, "too deeply nested" in refused.text) == (400, True)
        assert client.post("/v1/chat/completions", json=CHAT).status_code == 200


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"messages":' + b"[" * 200 + b"]" * 200 + b"}", "in each other"),
        (b'{"messages":[' + b'{"role":"x"},' * 60_000 + b"1]}", "objects, lists and members"),
        (b'{"prompt":[' + b"5," * 1_100_000 + b"5]}", "items"),
        (b'{"prompt":["\\\\",' + b'"a,[{:",' * 1_000 + b"5]}", "prompt"),  # brackets in strings do not count
        ('{"prompt":"a"}'.encode("utf-16"), "UTF-8"),
    ],
    ids=["depth", "members", "items", "strings", "UTF-16"],
)
def test_bodies_of_too_many_values(server: Running, body: bytes, message: str) -> None:
    with server.client() as client:
        refused = client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert (refused.status_code, message in refused.text) == (400, True), refused.text[:300]


def test_more_prompts_than_the_queue_holds(server: Running) -> None:
    with server.client() as client:
        refused = client.post("/v1/completions", json={"prompt": ["a"] * 5, "n": 16})
    assert "80 answers are more than" in refused.json()["error"]["message"]


def test_a_head_after_an_answer_times_out(guarded: Running) -> None:
    with connected(guarded) as slow:
        slow.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = b""
        while not answer.endswith(b'{"status":"ok"}'):
            answer += slow.recv(4096)
        slow.sendall(b"G")
        assert slow.recv(4096) == b""  # closed by the server


def test_private_network_preflight(guarded: Running) -> None:
    asked = {"access-control-request-method": "POST", "access-control-request-private-network": "true"}
    with guarded.client() as client:
        listed = client.options("/v1/messages", headers=asked | {"origin": "https://page.example"})
        other = client.options("/v1/messages", headers=asked | {"origin": "https://other.example"})
    assert (listed.status_code, listed.headers["access-control-allow-private-network"]) == (200, "true")
    assert "access-control-allow-private-network" not in other.headers


def test_form_posts_are_refused(server: Running) -> None:
    """Content types that a page may send across origins without a preflight request."""
    with server.client() as client:
        for kind in ("text/plain", "application/x-www-form-urlencoded"):
            refused = client.post("/v1/chat/completions", content=json.dumps(CHAT), headers={"content-type": kind})
            assert refused.status_code in (400, 415)


def test_a_public_address_needs_a_key() -> None:
    with pytest.raises(InvalidRequestError, match="--api-key"):
        ServeSettings(host="0.0.0.0").check_exposure()
    for settings in (
        ServeSettings(host="0.0.0.0", api_key=("k",)),
        ServeSettings(host="0.0.0.0", no_auth=True),
        ServeSettings(host="::1"),
        ServeSettings(host="127.1.2.3"),
    ):
        settings.check_exposure()
    command = [sys.executable, "-m", "lucebox", "serve", MODEL, "--host", "0.0.0.0"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    assert "--api-key" in refused.stderr


@pytest.mark.parametrize("key", ["", "two words", "schlüssel"])
def test_keys_must_fit_in_a_header(key: str) -> None:
    with pytest.raises(InvalidRequestError, match="API key"):
        ServeSettings(api_key=(key,)).all_keys()


def test_a_file_without_keys(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# none\n\n")
    with pytest.raises(InvalidRequestError, match="no API key"):
        ServeSettings(api_key_file=str(tmp_path / "keys")).all_keys()


# --- informational routes


def test_models(guarded: Running, server: Running) -> None:
    with guarded.client(headers={"x-api-key": KEYS[0]}) as client:
        found = client.get("/v1/models").json()
        (model,) = found["data"]
        assert (found["first_id"], found["last_id"], found["has_more"]) == ("mine", "mine", False)
        limits = ("max_input_tokens", "max_tokens", "context_window", "max_model_len")
        assert [model[name] for name in limits] == [2048] * 4
        assert (model["id"], model["context_length"]) == ("mine", 2048)
        assert client.get("/v1/models/mine").json()["id"] == "mine"
        assert client.get("/v1/models/other").status_code == 404
    assert [model.id for model in server.openai().models.list()] == [MODEL]
    (own,) = server.anthropic().models.list()
    assert (own.id, own.max_input_tokens, own.max_tokens) == (MODEL, 2048, 2048)


def test_tokenize_and_detokenize(server: Running) -> None:
    with server.client() as client:
        tokens = client.post("/v1/tokenize", json={"content": "Grüße, world!"}).json()
        assert tokens["count"] == len(tokens["tokens"])
        text = client.post("/v1/detokenize", json={"tokens": tokens["tokens"]}).json()["content"]
        assert text == "Grüße, world!"
        assert client.post("/v1/detokenize", json={"tokens": [10**9]}).status_code == 400


def test_routes_for_clients_of_other_servers(server: Running) -> None:
    with server.client() as client:
        assert client.get("/props").json()["default_generation_settings"]["n_ctx"] == 2048
        assert client.get("/api/tags").json()["models"][0]["name"] == MODEL
        assert client.get("/api/version").json().keys() == {"version"}
        assert client.get("/health/ready").json() == {"status": "ok"}
        assert client.get("/nowhere").json()["error"]["message"] == "GET /nowhere: Not Found"
        assert client.get("/v1/messages").json()["error"]["type"] == "invalid_request_error"


def test_metrics_count(server: Running) -> None:
    def samples() -> dict[str, float]:
        text = server.client().get("/metrics").text
        rows = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in rows}

    before = samples()
    server.openai().chat.completions.create(model=MODEL, messages=ASK, max_tokens=5, extra_body={"ignore_eos": True})
    after = samples()
    assert after["lucebox_generated_tokens_total"] - before["lucebox_generated_tokens_total"] == 5
    assert after["lucebox_first_token_seconds_count"] - before["lucebox_first_token_seconds_count"] == 1
    name = f'lucebox_requests_total{{model="{MODEL}",endpoint="/v1/chat/completions",outcome="length"}}'
    assert after[name] - before.get(name, 0) == 1
    assert after[f'lucebox_requests_running{{model="{MODEL}"}}'] == 0


def test_the_status_has_no_text(server: Running) -> None:
    secret = "xylophone"
    with server.client() as client:
        client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": secret}], "max_tokens": 2})
        told = client.get("/status").text + client.get("/metrics").text
    assert secret not in told
    assert json.loads(client_status := told[: told.index("# HELP")])["requests"], client_status


@pytest.mark.slow  # 10 s
def test_a_slow_reader_is_dropped_and_delays_nobody() -> None:
    ask = {"messages": ASK, "max_tokens": 1900, "temperature": 0, "ignore_eos": True, "stream": True}
    ask |= {"logprobs": True, "top_logprobs": 20, "n": 2}
    body = json.dumps(ask).encode()
    with started("--write-timeout", "0.5") as server:
        address = httpx.URL(server.url)
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect((address.host, address.port))
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        reader.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        while not (records := server.status()["requests"]):  # while the reader is slow, others have their answers
            time.sleep(0.05)
        assert records[-1]["outcome"] == "cancelled"
        server.wait_until(running=0, waiting=0)
        reader.close()
