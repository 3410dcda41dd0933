"""Checks of the server itself: health, models, and cancellation when a client disconnects."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

from lucebox.probe.client import CheckFunction, Client, require

__all__ = ["CHECKS", "models"]

LONG_TOKENS = 256  # length of the abandoned answer on a server without lucebox's /status
CANCEL_S = 5.0  # deadline for each change in /status


def health(client: Client) -> str:
    status = client.request("/health").status
    require(status == 200, f"status {status}")
    return "status 200"


def models(client: Client) -> str:
    found = client.request("/v1/models").json()["data"]
    require(found and found[0]["id"], "no model")
    entry = next((one for one in found if one["id"] == client.model), found[0])
    client.model = client.model or entry["id"]
    client.context = int(entry.get("context_length") or entry.get("max_model_len") or 0)
    require(client.context, "no context_length, so clients must guess when to compact")
    return f"{entry['id']}, context {client.context}"


def abandoned_stream(client: Client) -> str:
    return _abandoned(client, is_stream=True)


def abandoned_answer(client: Client) -> str:
    return _abandoned(client, is_stream=False)


def _abandoned(client: Client, *, is_stream: bool) -> str:
    """Disconnects during a request. lucebox's /status shows the cancellation; for other servers, timing decides."""
    reply = client.request("/status")
    status = json.loads(reply.text) if reply.status == 200 and reply.text.startswith("{") else {}
    if isinstance(status.get("requests"), list) and "running" in status:
        return _abandoned_by_status(client, is_stream)
    return _abandoned_by_time(client, is_stream)


def _abandoned_by_status(client: Client, is_stream: bool) -> str:
    before = _last_ended_at(client)
    body = client.chat_body(max_tokens=client.context, ignore_eos=True, stream=is_stream)
    with closing(client.send("/v1/chat/completions", body)) as connection:
        if is_stream:
            _read_events(connection, 4)
        else:
            _wait(client, lambda status: status["running"] > 0, "the request is not running")
    start = time.perf_counter()
    record = _wait(client, lambda status: _record_after(status, before), "/status does not list the ended request")
    require(record["outcome"] == "cancelled", f"the abandoned answer was computed: {record['outcome']}")
    return f"after {record['generated_tokens']} tokens, {time.perf_counter() - start:.2f} s"


def _read_events(connection: HTTPConnection, n: int) -> None:
    """Reads `n` events: the first may be sent before any token is computed."""
    response = connection.getresponse()
    require(response.status == 200, f"status {response.status}")
    while n and (line := response.readline()):
        n -= line.startswith(b"data:")


def _last_ended_at(client: Client) -> float:
    return max((record["ended_at"] for record in client.request("/status").json()["requests"]), default=0.0)


def _record_after(status: dict[str, Any], before: float) -> Any:
    return next((record for record in status["requests"] if record["ended_at"] > before), None)


def _wait(client: Client, found: Callable[[dict[str, Any]], Any], failure: str) -> Any:
    """Polls /status until `found` returns something."""
    deadline = time.perf_counter() + CANCEL_S
    while not (value := found(client.request("/status").json())):
        require(time.perf_counter() < deadline, f"{failure} after {CANCEL_S:g} s")
        time.sleep(0.01)
    return value


def _abandoned_by_time(client: Client, is_stream: bool) -> str:
    """Checks that the next request finishes before the abandoned one would have.

    A server that runs requests concurrently also passes.
    """
    long = "Count from one to one thousand, in words."
    start = time.perf_counter()
    used = client.chat(long, max_tokens=LONG_TOKENS).json()["usage"]["completion_tokens"]
    whole_s = time.perf_counter() - start
    body = client.chat_body(long, max_tokens=LONG_TOKENS, stream=is_stream)
    with closing(client.send("/v1/chat/completions", body)) as connection:
        if is_stream:
            _read_events(connection, 4)
        else:
            time.sleep(whole_s / 8)
    start = time.perf_counter()
    client.chat(max_tokens=1).json()
    next_s = time.perf_counter() - start
    require(next_s < whole_s / 2, f"the next token took {next_s:.2f} s, {used} abandoned tokens take {whole_s:.2f} s")
    return f"the next token after {next_s:.2f} s, {used} tokens take {whole_s:.2f} s"


CHECKS: tuple[tuple[str, CheckFunction], ...] = (
    ("health", health),
    ("models", models),
)
DISCONNECTS: tuple[tuple[str, CheckFunction], ...] = (
    ("disconnect while streaming", abandoned_stream),
    ("disconnect while waiting", abandoned_answer),
)
