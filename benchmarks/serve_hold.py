"""How long one hostile body holds a server: serve_hold.py [KIND ...] [--repeat N] [--scorer FILE] [--json]

Each kind of body is sent to a server with tiny-hybrid while one process polls /health and another one sends small
chats. The longest /health and the slowest chat are printed in wall-clock time and in CPU time of the server, of which
threads beside the event loop have a share. The least of several runs counts: other work of the machine makes a request
wait in some of them, a body that holds the server in all.

The limits: no body makes /health wait for 50 ms, and none of less than 10 KB adds 100 ms to another client's chat.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import hostile_bodies as hostile

HEALTH_MS, CHAT_MS, SMALL_BYTES = 50, 100, 10_000
CHAT = json.dumps(hostile.CHAT | {"max_tokens": 1}).encode()
Body = tuple[str, bytes]
"""The path and the body of a POST request."""


def chat_body(fields: dict[str, Any]) -> Body:
    return "/v1/chat/completions", json.dumps(hostile.CHAT | fields).encode()


def small_bodies() -> dict[str, Body]:
    """Bodies below 10 KB, which may cost another client at most 100 ms."""
    pattern = hostile.NESTED
    patterns = [{"pattern": f"{pattern}{{{10 + i}}}"} for i in range(150)]
    tool = {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "string", "pattern": f"{pattern}{{9}}"}},
    }
    deep: Any = 1
    for _ in range(120):
        deep = [deep]
    held = {f"mask: {name}": chat_body(fields | {"n": 2, "max_tokens": 60}) for name, fields in hostile.HOLDS.items()}
    compiled = {f"compile: {name}": chat_body(hostile.SLOW[name]) for name in ("multipleOf", "patterns", "repeats")}
    return held | compiled | {
        "compile: 150 patterns": chat_body(hostile.schema({"allOf": patterns})),
        "compile: a tool's pattern": chat_body({"tools": [tool], "tool_choice": "required"}),
        "20 log probabilities": chat_body({"n": 2, "logprobs": True, "top_logprobs": 20, "max_tokens": 60}),
        "64 stop strings": ("/v1/completions", json.dumps(
            {"prompt": "a" * 500, "stop": ["a" * 60 + chr(98 + i % 25) + str(i) for i in range(64)], "max_tokens": 60}
        ).encode()),
        "300 biases": chat_body({"logit_bias": {str(i): 1 for i in range(300)}, "max_tokens": 60}),
        "9 KB of one letter": ("/v1/completions", json.dumps({"prompt": "a" * 9000, "max_tokens": 1}).encode()),
        "9 KB of white space": ("/v1/completions", json.dumps({"prompt": " " * 9000, "max_tokens": 1}).encode()),
        "9 KB of control tokens": chat_body({"messages": [{"role": "user", "content": "<|im_end|>" * 850}]}),
        "texts to embed": ("/v1/embeddings", json.dumps({"input": ["a"] * 1900, "pooling": "mean"}).encode()),
        "deep template variables": chat_body({"chat_template_kwargs": {"a": deep}}),
        "messages of one letter": chat_body({"messages": [{"role": "user", "content": "a"}] * 250}),
        "lines of GBNF, 9 KB": ("/v1/completions", hostile.guided("grammar", b"root ::= " + b"\\n" * 4400 + b"(")),
        "1700 ids to text": ("/v1/detokenize", json.dumps({"tokens": [5] * 1700}).encode()),
    }  # fmt: skip


def large_bodies() -> dict[str, Body]:
    text = b"once upon a time " * 61_000
    long = b'{"messages":[{"role":"user","content":"' + b"word " * 4_200_000 + b'"}]}'
    return {
        **{f"chain: {name}": chat_body(fields) for name, fields in hostile.CHAINS.items()},
        "compile: enum": chat_body(hostile.SLOW["enum"]),
        **{name: (path, make()) for name, (path, make) in hostile.BODIES.items()},
        "1 MiB to tokenize": ("/v1/tokenize", b'{"with_pieces":true,"content":"' + text[: 1 << 20] + b'"}'),
        "a prompt of 21 MB": ("/v1/chat/completions", long),
        "a prompt of 21 MB to count": ("/v1/messages/count_tokens", long),
    }


def scored_bodies() -> dict[str, Body]:
    """A prompt that the server's scorer reads whole, to keep a thousandth of it."""
    text = "The code of vault 7 is 1234. " + "Once upon a time there was a small dog. " * 700
    asked = {"mode": "always", "keep_ratio": 0.001}
    return {"score 28 KB": chat_body({"messages": [{"role": "user", "content": text}], "compression": asked})}


def varied(body: Body, run: int) -> Body:
    """The body with another schema, grammar or text: reports on grammars and scores of texts are remembered."""
    path, data = body
    number = str(run).encode()
    for text, other in (
        (b'"schema": {', b'"schema": {"title": "%s", ' % number),
        (b'"parameters": {', b'"parameters": {"title": "%s", ' % number),
        (b'"grammar": "', b'"grammar": "// %s\\n' % number),
        (b'"guided_grammar":"', b'"guided_grammar":"# %s\\n' % number),
        (b'"regex": "x', b'"regex": "x{1,%s}' % number),
        (b"vault 7", b"vault %s" % number),
    ):
        data = data.replace(text, other, 1)
    return path, data


# --- clients, each in a process of its own


def cpu_seconds(pid: int) -> float:
    """Seconds that the threads of a process have run on a core."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has ended
    return total / 1e9


Times = list[tuple[float, float]]
"""(seconds, CPU seconds of the server) of each request."""


def poll(address: str, pid: int, path: str, body: bytes | None, pause_s: float, over: Event, out: Any) -> None:
    """Sends requests on one connection until `over`; puts their times."""
    connection = http.client.HTTPConnection(address, timeout=120)
    times: Times = []
    while not over.is_set():
        before, start = cpu_seconds(pid), time.perf_counter()
        connection.request("GET" if body is None else "POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        times.append((time.perf_counter() - start, cpu_seconds(pid) - before))
        assert response.status == 200, f"{path} answered {response.status}"
        time.sleep(pause_s)
    out.put(times)


@contextmanager
def polled(address: str, pid: int, path: str, body: bytes | None, pause_s: float) -> Iterator[Times]:
    """Polls meanwhile; afterwards the list has the times."""
    times: Times = []
    over, out = multiprocessing.Event(), multiprocessing.Queue()
    arguments = (address, pid, path, body, pause_s, over, out)
    process = multiprocessing.Process(target=poll, args=arguments)
    process.start()
    try:
        time.sleep(0.3)
        yield times
        time.sleep(0.3)
    finally:
        over.set()
        times += out.get(timeout=130)
        process.join()


def send(address: str, body: Body) -> int:
    connection = http.client.HTTPConnection(address, timeout=120)
    path, data = body
    connection.request("POST", path, data, {"Content-Type": "application/json"})
    response = connection.getresponse()
    response.read()
    connection.close()
    return response.status


@dataclass(frozen=True)
class Row:
    """Times in milliseconds. CPU: of the server, while the client waited."""

    kind: str
    n_bytes: int
    status: int
    answer_ms: float
    health_ms: float
    health_cpu_ms: float
    chat_ms: float
    """Added to a chat, beyond the median of chats without the body."""
    chat_cpu_ms: float

    @property
    def is_within(self) -> bool:
        chat = self.n_bytes >= SMALL_BYTES or min(self.chat_ms, self.chat_cpu_ms) < CHAT_MS
        return min(self.health_ms, self.health_cpu_ms) < HEALTH_MS and chat


def medians(times: Times) -> tuple[float, float]:
    return statistics.median(wall for wall, _ in times), statistics.median(cpu for _, cpu in times)


def largest(times: Times, usual: tuple[float, float] = (0, 0)) -> tuple[float, float]:
    """The slowest request by each clock, in milliseconds beyond the usual."""
    return 1e3 * (max(wall for wall, _ in times) - usual[0]), 1e3 * (max(cpu for _, cpu in times) - usual[1])


def measure(address: str, pid: int, kind: str, body: Body, usual: tuple[float, float], repeat: int) -> Row:
    runs = []
    for run in range(1, repeat + 1):
        with polled(address, pid, "/health", None, 0.002) as health:
            start = time.perf_counter()
            status = send(address, varied(body, 2 * run))
            answer = 1e3 * (time.perf_counter() - start)
        with polled(address, pid, "/v1/chat/completions", CHAT, 0.005) as chats:
            send(address, varied(body, 2 * run + 1))
        runs.append((answer, *largest(health), *largest(chats, usual)))
    return Row(kind, len(body[1]), status, *(round(min(column), 1) for column in zip(*runs, strict=True)))


@contextmanager
def served(*flags: str) -> Iterator[tuple[str, int]]:
    """Starts a server; its address and process id."""
    command = [sys.executable, "-m", "lucebox", "serve", "tiny-hybrid", "--json", "--port", "0", "--context", "2048"]
    command += ["--threads", "1", "--slots", "4", "--max-queue", "16", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"].removeprefix("http://"), process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="kinds of bodies whose names contain this; none: all")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each kind (default: 3)")
    parser.add_argument("--scorer", help="a scorer, for a body that is compressed")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each kind")
    args = parser.parse_args()
    kinds = small_bodies() | large_bodies() | (scored_bodies() if args.scorer else {})
    chosen = {name: body for name, body in kinds.items() if not args.kinds or any(part in name for part in args.kinds)}
    rows = []
    with served(*(("--prefill-drafter", args.scorer) if args.scorer else ())) as (address, pid):
        send(address, chat_body(hostile.schema({"type": "boolean"})))  # makes the table of the vocabulary, once
        with polled(address, pid, "/v1/chat/completions", CHAT, 0.005) as chats:
            time.sleep(2)
        usual = medians(chats[5:])
        load = os.getloadavg()[0]
        if not args.json:
            print(f"load {load:.1f}; a chat takes {1e3 * usual[0]:.1f} ms, {1e3 * usual[1]:.1f} ms of CPU time\n")
            print(
                f"{'':<38}{'bytes':>10}{'status':>8}{'answer':>10}{'/health':>10}{'CPU':>8}{'chat':>10}{'CPU':>8}  ms"
            )
        for kind, body in chosen.items():
            row = measure(address, pid, kind, body, usual, args.repeat)
            rows.append(row)
            if args.json:
                print(json.dumps(asdict(row) | {"load": load, "is_within": row.is_within}), flush=True)
            else:
                print(
                    f"{row.kind:<38}{row.n_bytes:>10}{row.status:>8}{row.answer_ms:>10.0f}{row.health_ms:>10.1f}"
                    f"{row.health_cpu_ms:>8.1f}{row.chat_ms:>10.1f}{row.chat_cpu_ms:>8.1f}"
                    f"{'' if row.is_within else '  beyond a limit'}",
                    flush=True,
                )
    return 0 if all(row.is_within for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
