"""`lucebox probe` against a server of ours, and against one that promises nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer

import pytest
from lucebox.cli import main
from lucebox.models import catalog
from lucebox.probe import CHECKS, probe
from lucebox.probe.client import CheckFailed, Client
from lucebox.probe.server import abandoned_answer


class Empty(BaseHTTPRequestHandler):
    """Answers everything with an empty object."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def empty() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Slow(BaseHTTPRequestHandler):
    """A server that is slow at each token and has no /status."""

    def do_GET(self) -> None:
        self.send_error(404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        time.sleep(0.008 * body["max_tokens"])
        answer = json.dumps({"usage": {"completion_tokens": body["max_tokens"]}}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        with suppress(OSError):  # the client may have gone
            self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(("kind", "is_left"), [(HTTPServer, False), (ThreadingHTTPServer, True)])
def test_of_other_servers_time_tells(kind: type[HTTPServer], is_left: bool) -> None:
    """One that answers one after the other computes on for nobody; one that does not is free for the next."""
    with kind(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = Client(f"http://127.0.0.1:{server.server_port}", "", "", 60)

        def outcome() -> str:
            try:
                return abandoned_answer(client)
            except CheckFailed as failed:
                return str(failed)

        expected = "256 tokens take" if is_left else "256 abandoned tokens"
        assert any(expected in outcome() for _ in range(5))  # other work on the machine may hold up the client
        server.shutdown()


@pytest.fixture
def served() -> Iterator[str]:
    pytest.importorskip("lucebox.serve.app", reason="the server's libraries are not installed")
    model = str(catalog.fetch("tiny-hybrid"))
    command = [sys.executable, "-m", "lucebox", "serve", model, "--port", "0", "--context", "2048", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        text = ""
        for line in process.stdout:
            text += line
            if line.rstrip() == "}" or (line.startswith("{") and line.rstrip().endswith("}")):
                break
        yield json.loads(text)["url"]
    finally:
        process.terminate()
        process.wait()


@pytest.mark.slow  # 5 s
def test_our_server_keeps_what_clients_count_on(served: str) -> None:
    checks = list(probe(served))
    assert [(check.protocol, check.name, check.detail) for check in checks if not check.ok] == []
    assert len(checks) == len(CHECKS)


def test_an_empty_answer_is_no_answer(empty: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", f"{empty}/v1", "--json"]) == 1
    checks = json.loads(capsys.readouterr().out)
    assert [check["name"] for check in checks if check["ok"]] == ["health"]
    assert all(check["detail"] for check in checks)


def test_the_table_says_what_is_missing(empty: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", empty]) == 1
    assert "MISSING" in capsys.readouterr().out


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "127.0.0.1:1"]) == 1
    assert "lucebox: error" in capsys.readouterr().err
    assert main(["probe", "ftp://x"]) == 1
    assert "not an HTTP URL" in capsys.readouterr().err
