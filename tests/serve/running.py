"""Starts and stops `lucebox serve`."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import uvicorn
from forked import Forked
from lucebox import LLM
from lucebox.serve.app import create_app
from lucebox.serve.settings import ServeSettings
from sdks import anthropic, openai

MODEL = "tiny-hybrid"
WHOLE_CONTEXT = 8192  # the model's maximum
SLOW = ("--isa", "scalar", "--draft", "none")
ASK = [{"role": "user", "content": "Once upon a time there was a small dog."}]


def free_port() -> int:
    """A port that no socket gets by asking for any free one: tests that run meanwhile do so all the time."""
    while True:
        port = random.randrange(20_000, 32_768)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@dataclass
class Running:
    """A listening server."""

    url: str
    process: Forked | subprocess.Popen[str]
    facts: dict[str, Any]

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, **options)

    def openai(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(**{"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0} | options)

    def async_openai(self) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def anthropic(self, **options: Any) -> anthropic.Anthropic:
        return anthropic.Anthropic(**{"base_url": self.url, "api_key": "none", "max_retries": 0} | options)

    def async_anthropic(self) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=self.url, api_key="none", max_retries=0)

    def status(self) -> dict[str, Any]:
        return httpx.get(f"{self.url}/status", timeout=60).json()

    def wait_until(self, **expected: int) -> dict[str, Any]:
        """Waits until fields of /status have these values; returns the status."""
        for _ in range(1200):
            status = self.status()
            if all(status[name] == value for name, value in expected.items()):
                return status
            time.sleep(0.05)
        raise AssertionError(f"expected {expected}, the status is {status}")


@contextmanager
def started(
    *flags: str, model: str | Sequence[str] = MODEL, context: int = 2048, log: Path | None = None
) -> Iterator[Running]:
    """Starts a server; at the end, stops it with a signal and checks for a clean exit.

    log: a file for its standard error."""
    models = [model] if isinstance(model, str) else model
    options = ["--port", "0", "--json", "--context", str(context), "--prefill-chunk", "64", "--threads", "1"]
    process = Forked(["serve", *models, *options, *flags], log)
    try:
        line = process.stdout.readline()
        assert line, "the server did not start"
        facts = json.loads(line)
        yield Running(facts["url"], process, facts)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


@contextmanager
def in_process(llm: LLM, settings: ServeSettings | None = None) -> Iterator[str]:
    """Serves an LLM of this process, by default on one slot; the URL."""
    app = create_app(llm, settings or ServeSettings(slots=1))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
