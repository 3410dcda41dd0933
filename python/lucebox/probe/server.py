"""What a server says of itself, and whether it stops computing for clients that have gone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

from lucebox.probe.asking import Asked, CheckFunction, need

__all__ = ["CHECKS", "models"]

LONG_TOKENS = 256  # of the answer that nobody waits for, where the server does not say what it computes
CANCEL_S = 5.0


def health(server: Asked) -> str:
    status = server.ask("/health").status
    need(status == 200, f"status {status}")
    return "status 200"


def models(server: Asked) -> str:
    found = server.ask("/v1/models").json()["data"]
    need(found and found[0]["id"], "no model")
    entry = next((one for one in found if one["id"] == server.model), found[0])
    server.model = server.model or entry["id"]
    server.context = int(entry.get("context_length") or entry.get("max_model_len") or 0)
    need(server.context, "no context_length: clients guess when to compact")
    return f"{entry['id']}, context {server.context}"


def left_stream(server: Asked) -> str:
    return _left(server, is_stream=True)


def left_answer(server: Asked) -> str:
    return _left(server, is_stream=False)


def _left(server: Asked, *, is_stream: bool) -> str:
    """A server of ours says in /status that the request was cancelled; of another one only time tells."""
    reply = server.ask("/status")
    status = json.loads(reply.text) if reply.status == 200 and reply.text.startswith("{") else {}
    if isinstance(status.get("requests"), list) and "running" in status:
        return _left_by_status(server, is_stream)
    return _left_by_time(server, is_stream)


def _left_by_status(server: Asked, is_stream: bool) -> str:
    before = _last_end(server)
    body = server.asking(max_tokens=server.context, ignore_eos=True, stream=is_stream)
    with closing(server.send("/v1/chat/completions", body)) as connection:
        if is_stream:
            _read_events(connection, 4)
        else:
            _wait(server, lambda status: status["running"] > 0, "the request is not computed")
    start = time.perf_counter()
    record = _wait(server, lambda status: _ended_after(status, before), "its end is not in /status")
    need(record["outcome"] == "cancelled", f"the answer was computed, of which nobody read: {record['outcome']}")
    return f"after {record['generated_tokens']} tokens, {time.perf_counter() - start:.2f} s"


def _read_events(connection: HTTPConnection, n: int) -> None:
    """The first ones may come before anything is computed."""
    response = connection.getresponse()
    need(response.status == 200, f"status {response.status}")
    while n and (line := response.readline()):
        n -= line.startswith(b"data:")


def _last_end(server: Asked) -> float:
    return max((record["ended_at"] for record in server.ask("/status").json()["requests"]), default=0.0)


def _ended_after(status: dict[str, Any], before: float) -> Any:
    return next((record for record in status["requests"] if record["ended_at"] > before), None)


def _wait(server: Asked, found: Callable[[dict[str, Any]], Any], otherwise: str) -> Any:
    deadline = time.perf_counter() + CANCEL_S
    while not (value := found(server.ask("/status").json())):
        need(time.perf_counter() < deadline, f"{otherwise} after {CANCEL_S:g} s")
        time.sleep(0.01)
    return value


def _left_by_time(server: Asked, is_stream: bool) -> str:
    """Whether the next answer comes sooner than the one that was left would have taken. A server that answers several
    at once passes too."""
    long = "Count from one to one thousand, in words."
    start = time.perf_counter()
    used = server.chat(long, max_tokens=LONG_TOKENS).json()["usage"]["completion_tokens"]
    whole_s = time.perf_counter() - start
    body = server.asking(long, max_tokens=LONG_TOKENS, stream=is_stream)
    with closing(server.send("/v1/chat/completions", body)) as connection:
        if is_stream:
            _read_events(connection, 4)
        else:
            time.sleep(whole_s / 8)
    start = time.perf_counter()
    server.chat(max_tokens=1).json()
    next_s = time.perf_counter() - start
    need(next_s < whole_s / 2, f"the next token took {next_s:.2f} s, {used} tokens that nobody reads {whole_s:.2f} s")
    return f"the next token after {next_s:.2f} s, {used} tokens take {whole_s:.2f} s"


CHECKS: tuple[tuple[str, CheckFunction], ...] = (
    ("health", health),
    ("models", models),
)
LEAVING: tuple[tuple[str, CheckFunction], ...] = (
    ("left while streaming", left_stream),
    ("left while waiting", left_answer),
)
