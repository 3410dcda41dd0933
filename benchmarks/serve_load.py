"""Many clients at once, most of them bad ones: serve_load.py [MODEL] [--clients N] [--seconds S]

Clients ask and read, stream, leave in the middle, read slowly, send too much, send broken JSON, or connect and say
nothing. A separate process asks /health all the while. In the end the server must be idle, hold no connection, and
stop cleanly; every answer must fit its request.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

PROMPTS = ["The dog", "Once upon a time", "A long walk " * 60, "Where is the sea? " * 20]
MAX_BODY = 100_000
BUSY = (503, 529)


class Load:
    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.random = random.Random(0)

    async def run(self, clients: int, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        await asyncio.gather(*(self.client(i) for i in range(clients)))

    async def client(self, number: int) -> None:
        kinds = [
            self.ask,
            self.ask,
            self.stream,
            self.stream,
            self.leave,
            self.slow,
            self.large,
            self.broken,
            self.silent,
        ]
        while time.monotonic() < self.end:
            kind = kinds[number % len(kinds)]
            try:
                await asyncio.wait_for(kind(), 120)
            except (OSError, asyncio.IncompleteReadError) as error:
                if kind not in (self.large, self.slow, self.silent):  # the server must drop these
                    self.wrong.append(f"{kind.__name__}: {error!r}")
            self.outcomes[kind.__name__] += 1

    def expect(self, what: str, status: int, *allowed: int) -> None:
        if status not in allowed:
            self.wrong.append(f"{what}: status {status}")

    def body(self, **fields: object) -> bytes:
        messages = [{"role": "user", "content": self.random.choice(PROMPTS)}]
        return json.dumps({"messages": messages, "max_tokens": self.random.randint(1, 24), **fields}).encode()

    async def opened(self, method: str, path: str, body: bytes = b"", length: int | None = None):  # type: ignore[no-untyped-def]
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 20)
        n = len(body) if length is None else length
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {n}\r\n\r\n"
        writer.write(head.encode() + body)
        return reader, writer

    async def request(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        reader, writer = await self.opened(method, path, body)
        data = await reader.read()
        writer.close()
        if not data:
            raise ConnectionResetError("no answer")
        return int(data.split(b" ", 2)[1]), data

    # --- kinds of clients

    async def ask(self) -> None:
        path = self.random.choice(["/v1/chat/completions", "/v1/messages"])
        status, data = await self.request("POST", path, self.body())
        self.expect("ask", status, 200, *BUSY)
        if status in BUSY and b"retry-after" not in data:
            self.wrong.append("busy without retry-after")

    async def stream(self) -> None:
        path, last = self.random.choice([("/v1/chat/completions", b"[DONE]"), ("/v1/messages", b"message_stop")])
        status, data = await self.request("POST", path, self.body(stream=True))
        self.expect("stream", status, 200, *BUSY)
        if status == 200 and last not in data:
            self.wrong.append(f"stream without its end: {data[-200:]!r}")

    async def leave(self) -> None:
        _, writer = await self.opened(
            "POST", "/v1/chat/completions", self.body(stream=self.random.random() < 0.5, max_tokens=900)
        )
        await asyncio.sleep(self.random.random())
        writer.transport.abort()

    async def slow(self) -> None:
        reader, writer = await self.opened(
            "POST", "/v1/chat/completions", self.body(stream=True, logprobs=True, top_logprobs=20, n=4)
        )
        while await reader.read(512):
            await asyncio.sleep(0.02)
        writer.close()

    async def large(self) -> None:
        status, _ = await self.request("POST", "/v1/messages", b"x" * (2 * MAX_BODY))
        self.expect("large", status, 413)

    async def broken(self) -> None:
        status, _ = await self.request("POST", "/v1/chat/completions", self.body()[:-3])
        self.expect("broken", status, 400)
        status, _ = await self.request("POST", "/v1/messages", self.body(nonsense=1))
        self.expect("broken", status, 400)

    async def silent(self) -> None:
        half = self.random.random() < 0.5
        reader, writer = (
            await self.opened("POST", "/v1/messages", b"{", 1000)
            if half
            else await asyncio.open_connection(self.host, self.port)
        )
        await reader.read()  # until the server closes
        writer.close()


def watch(host: str, port: int, seconds: float) -> list[float]:
    """How long each of many requests for /health took."""
    times = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.perf_counter()
        connection = http.client.HTTPConnection(host, port)
        connection.request("GET", "/health")
        if connection.getresponse().status == 200:
            times.append(time.perf_counter() - start)
        connection.close()
        time.sleep(0.05)
    return sorted(times)


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="tiny-hybrid")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=300)
    args = parser.parse_args()

    flags = ["--json", "--port", "0", "--context", "1024", "--threads", "1", "--max-queue", "24"]
    flags += ["--max-body", str(MAX_BODY), "--body-timeout", "2", "--prefix-cache", str(64 << 20)]
    server = subprocess.Popen(
        [sys.executable, "-m", "lucebox", "serve", args.model, *flags], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    facts = json.loads(server.stdout.readline())
    host, port = facts["url"].removeprefix("http://").split(":")
    load = Load(host, int(port))
    asyncio.run(Load.run(Load(host, int(port)), args.clients, 5))  # warms up caches
    files, before = open_files(server.pid), resident_mib(server.pid)
    with ProcessPoolExecutor(1) as other:
        watching = other.submit(watch, host, int(port), args.seconds)
        asyncio.run(load.run(args.clients, args.seconds))
        health = watching.result()
    status = asyncio.run(idle(load))
    after, files_after = resident_mib(server.pid), open_files(server.pid)
    server.send_signal(signal.SIGTERM)
    code = server.wait(60)

    print("clients served:", dict(load.outcomes))
    print("requests by outcome:", dict(Counter(record["outcome"] for record in status["requests"])), "(last 200)")
    p50, p99 = (1e3 * health[int(share * len(health))] for share in (0.5, 0.99))
    print(f"/health: {len(health)} times, p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    print(f"memory {before:.1f} to {after:.1f} MiB; open files {files} to {files_after}; exit code {code}")
    print(f"{len(load.wrong)} errors that no client caused", *sorted(set(load.wrong))[:10], sep="\n  ")
    return 1 if load.wrong or code or status["running"] or status["waiting"] else 0


async def idle(load: Load) -> dict:  # type: ignore[type-arg]
    """The status once nothing runs and no connection of ours is left."""
    for _ in range(200):
        _, data = await load.request("GET", "/status")
        status: dict[str, object] = json.loads(data.partition(b"\r\n\r\n")[2])
        if not status["running"] and not status["waiting"]:
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(3)  # lets half-open sockets time out
    return status


if __name__ == "__main__":
    sys.exit(main())
