"""The start of a server: errors before the model loads, the memory of all slots, and the access log."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from lucebox import LLM
from lucebox.errors import InvalidRequestError
from lucebox.generation.prefix_cache import fingerprint
from lucebox.serve import running_model
from lucebox.serve.listening import bound_sockets
from lucebox.serve.settings import ServeSettings
from lucebox.serve.telemetry import Telemetry
from running import MODEL, Running, started

SECRET = "xylophone"


def refused(*flags: str) -> str:
    """The error of a server that does not start, whose model would not be found either."""
    command = [sys.executable, "-m", "lucebox", "serve", "no-such-model", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.strip().splitlines()
    return line


@pytest.mark.slow  # 3 s
def test_two_models_of_one_name() -> None:
    command = [sys.executable, "-m", "lucebox", "serve", MODEL, MODEL, "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"two models are called {MODEL!r}: write NAME=MODEL" in done.stderr


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        line = refused("--port", str(taken.getsockname()[1]))
    assert "cannot listen on 127.0.0.1 port" in line and "in use" in line


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"port": 65536}, "at most 65535"),
        ({"port": -1}, "must not be negative"),
        ({"api_key": ("",)}, "printable ASCII"),
        ({"api_key_file": "/no/such/file"}, "--api-key-file /no/such/file: No such file"),
        ({"api_key_file": "/dev"}, "--api-key-file /dev: expected a file, found a folder"),
        ({"api_key_file": "/dev/zero"}, "found a device"),
        ({"chat_template_kwargs": "{"}, "--chat-template-kwargs is not JSON"),
        ({"chat_template_kwargs": "[" * 100_000}, "nested too deeply"),
        ({"chat_template_kwargs": "[1]"}, "holds list, expected a JSON object"),
        ({"ssl_keyfile": "key.pem"}, "needs --ssl-certfile"),
        ({"ssl_certfile": "/no/cert.pem"}, "there is no file /no/cert.pem"),
        ({"ssl_certfile": __file__}, "are not a certificate and its key"),
        ({"host": "0.0.0.0"}, "is not a loopback address"),
    ],
    ids=str,
)
def test_settings_that_cannot_work(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        ServeSettings(**settings).check()  # type: ignore[arg-type]


def test_a_key_file_that_is_not_text(tmp_path: Path) -> None:
    for data, message in ((b"\xff", "not UTF-8 text"), (b"\xff\xfea\x00", "it is UTF-16 text; .* iconv -f utf-16")):
        (tmp_path / "keys").write_bytes(data)
        with pytest.raises(InvalidRequestError, match=message):
            ServeSettings(api_key_file=str(tmp_path / "keys")).check()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]"])
def test_sockets(host: str) -> None:
    try:
        bound = bound_sockets(ServeSettings(host=host))
    except InvalidRequestError:
        assert "::" in host  # a machine without IPv6
        return
    assert len({one.getsockname()[1] for one in bound}) == 1
    for one in bound:
        one.close()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7", "a" * 300])
def test_hosts_that_are_not_this_machine(host: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"has no address|cannot listen"):
        bound_sockets(ServeSettings(host=host))


def test_memory_of_every_slot(server: Running) -> None:
    memory = server.status()["memory"]
    once = sum(entry["bytes"] for entry in memory["entries"])
    each = sum(entry["bytes"] for entry in memory["entries"] if entry["per_session"])
    assert memory["total_bytes"] == once + each and each > 0  # two slots
    line = f'lucebox_planned_memory_bytes{{model="{MODEL}"}} {memory["total_bytes"]}'
    assert line in server.client().get("/metrics").text


def test_only_a_cache_in_files_reads_all_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fingerprint reads the whole model, which a start from a slow disk would wait for."""
    prints: list[str] = []

    def counted(*args: Any) -> str:
        prints.append(fingerprint(*args))
        return prints[-1]

    monkeypatch.setattr(running_model, "fingerprint", counted)
    with LLM(MODEL, context=128, threads=1) as llm:
        for folder, n_prints in ((None, 0), (str(tmp_path), 1)):
            settings = ServeSettings(slots=1, prefix_cache_dir=folder)
            running_model.RunningModel(llm, settings, Telemetry(), owns_llm=False).close()
            assert len(prints) == n_prints


def test_the_access_log_has_no_text() -> None:
    command = [
        sys.executable,
        "-m",
        "lucebox",
        "serve",
        MODEL,
        "--port",
        "0",
        "--json",
        "--context",
        "256",
        "--access-log",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        url = json.loads(process.stdout.readline())["url"]
        ask = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 1}
        httpx.post(f"{url}/v1/chat/completions?q={SECRET}", json=ask, timeout=60)
        httpx.get(f"{url}/a%0Ab%20c", headers={"x-api-key": SECRET})
        process.terminate()
        log = process.stderr.read()
    lines = [line.split(" ") for line in log.splitlines() if "127.0.0.1" in line]
    assert SECRET not in log
    assert [line[2:5] for line in lines] == [["POST", "/v1/chat/completions", "200"], ["GET", "/a\\x0ab\\x20c", "404"]]
    assert all(int(line[5]) > 0 and float(line[6]) >= 0 for line in lines)


def test_states_of_all_slots_raise_the_default_of_the_prefix_cache() -> None:
    sizes = running_model.prefix_cache_bytes
    assert [sizes(3000, 2, 1 << 30), sizes(0, 1, 1 << 30), sizes(None, 1, 0), sizes(None, 2, 0)] == [
        1500, 0, 2 << 30, 1 << 30]  # fmt: skip
    assert [sizes(None, n, 600 << 20) for n in (1, 2)] == [2400 << 20] * 2  # with at least 20 GB available
    assert sizes(None, 1, 1 << 50) < 1 << 50


@pytest.mark.slow  # 2 s: a server
def test_flags_reach_the_server() -> None:
    with started("--prefix-cache", "3MB", "--sparse-prefill", "0.5") as server:
        status = server.status()
    assert status["prefix_cache"]["memory_budget_bytes"] == 3_000_000
    assert status["sparse_prefill"] == 0.5
