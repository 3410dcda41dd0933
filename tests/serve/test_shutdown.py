"""The end of a server whose answers do not finish in time: every client gets an error in its protocol."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from running import ASK, MODEL, SLOW

LONG = 7000
CHAT = {"model": MODEL, "messages": ASK}
REQUESTS: list[tuple[str, dict[str, Any], int]] = [
    ("/v1/chat/completions", {**CHAT, "max_tokens": LONG, "ignore_eos": True}, 503),
    ("/v1/completions", {"prompt": "a", "max_tokens": LONG, "ignore_eos": True}, 503),
    ("/completion", {"prompt": "a", "n_predict": LONG, "ignore_eos": True}, 503),
    ("/v1/messages", {**CHAT, "max_tokens": LONG, "output_config": {}}, 529),
    ("/v1/responses", {"input": "a", "max_output_tokens": LONG}, 503),
    ("/api/chat", {**CHAT, "options": {"num_predict": LONG}, "stream": False}, 503),
]
NUMBERS = {"type": "array", "items": {"type": "integer"}, "minItems": 3000}
REQUESTS[3][1]["output_config"] = {"format": {"type": "json_schema", "schema": NUMBERS}}
REQUESTS[4][1]["text"] = {"format": {"type": "json_schema", "schema": NUMBERS}}
REQUESTS[5][1]["format"] = NUMBERS


def ask(url: str, path: str, body: dict[str, Any]) -> tuple[int, str]:
    answered = httpx.post(f"{url}{path}", json=body, timeout=60)
    return answered.status_code, answered.text


@pytest.mark.parametrize(
    "streams",
    [True, pytest.param(False, marks=pytest.mark.slow)],
    ids=["streams", "documents"],  # 5 s each
)
def test_the_end_of_the_drain(streams: bool) -> None:
    options = ["--port", "0", "--json", "--context", "8192", "--threads", "1", "--slots", "3", "--drain", "0.5", *SLOW]
    command = [sys.executable, "-m", "lucebox", "serve", MODEL, *options]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        ThreadPoolExecutor(16) as pool,
    ):
        try:
            assert process.stdout is not None and process.stderr is not None
            url = json.loads(process.stdout.readline())["url"]
            asked = [pool.submit(ask, url, path, {**body, "stream": streams}) for path, body, _ in REQUESTS]
            while httpx.get(f"{url}/status", timeout=60).json()["waiting"] < 3:  # the others run
                time.sleep(0.05)
            os.kill(process.pid, signal.SIGTERM)
            for (path, _, status), answer in zip(REQUESTS, asked, strict=True):
                found, text = answer.result(timeout=60)
                assert found == (200 if streams else status), (path, text)
                assert "the server is shutting down" in text[-600:], (path, text[-600:])
            assert process.wait(60) == 0
            assert process.stderr.read() == ""
        finally:
            process.kill()
