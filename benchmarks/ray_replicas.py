"""The speed of two CPU replicas under Ray Serve beside one, each replica on a core of its own, and what Ray adds.

ray_replicas.py [MODEL] [-r REQUESTS] [-n TOKENS] [--slots N] [--no-stream]

Clusters of one and of two replicas answer the same load: a client for each slot, new prompts, answers of TOKENS tokens.
All other processes of the cluster, and the clients, may use every core. Processor time is split into what the cluster
takes without requests, by the second, and what a request takes. On a busy machine only these mean something: the last
lines say what they predict for two idle cores, beside what the clock said. Needs `lucebox[ray]`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FILE = """
[models.one]
model = {model}
device = "cpu"
context = 2048
draft = "none"
slots = {slots}

[ray]
min_replicas = {replicas}
"""
PARTS = {"ServeReplica:lucebox:model": "replicas", "ServeReplica:lucebox:": "ingress", "ProxyActor": "proxy"}
"""Parts of the cluster, by what their command line contains; the first match decides. All other processes: `ray`."""
TICKS = os.sysconf("SC_CLK_TCK")
SETTLE_S = 10
IDLE_S = 20


@dataclass(frozen=True, slots=True)
class Measured:
    """CPU seconds by part of a cluster, in each second without requests, and for each request besides."""

    idle: dict[str, float]
    request: dict[str, float]
    requests_per_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("-r", "--requests", type=int, default=40, help="of each replica (default 40)")
    parser.add_argument("-n", "--tokens", type=int, default=64)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--no-stream", action="store_true")
    args = parser.parse_args()
    one, two = (measure(args, n) for n in (1, 2))
    print(f"{args.model}, answers of {args.tokens} tokens, {'documents' if args.no_stream else 'streams'}")
    print(f"{'CPU ms':<12}{'a request':>26}{'a second without requests':>30}")
    print(f"{'':<12}{'1 replica':>14}{'2 replicas':>12}{'1 replica':>16}{'2 replicas':>14}")
    for part in one.request:
        figures = [1e3 * x[part] for x in (one.request, two.request, one.idle, two.idle)]
        print(f"{part:<12}{figures[0]:>14.1f}{figures[1]:>12.1f}{figures[2]:>16.1f}{figures[3]:>14.1f}")
    rates = [n.requests_per_s * args.tokens for n in (one, two)]
    print(f"by the clock: {rates[0]:.1f} and {rates[1]:.1f} tokens/s, {rates[1] / rates[0]:.2f}x")
    # One replica's core has nothing else to do, as the other core takes the rest.
    alone = (1 - one.idle["replicas"]) / one.request["replicas"]
    for without in ((), ("clients",)):
        both = (2 - sum(two.idle.values())) / sum(s for part, s in two.request.items() if part not in without)
        place = "on other machines" if without else "on the same cores"
        print(f"predicted on two idle cores, clients {place}: {both / alone:.2f}x")


def measure(args: argparse.Namespace, replicas: int) -> Measured:
    folder = Path(tempfile.mkdtemp(prefix="lb"))  # a short path: Ray puts sockets there
    models = folder / "models.toml"
    models.write_text(FILE.format(model=json.dumps(args.model), slots=args.slots, replicas=replicas))
    # Other clusters of the machine do not see this one, which keeps its token in a home of its own.
    own = {"RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "HOME": str(folder)}
    cache = {"LUCEBOX_CACHE": os.environ.get("LUCEBOX_CACHE", str(Path.home() / ".cache" / "lucebox"))}
    command = [sys.executable, "-m", "lucebox", "serve", "--ray", str(models), "--port", "0", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **own, **cache})
    assert server.stdout is not None
    try:
        url = json.loads(server.stdout.readline())["url"].removeprefix("http://")
        pids = [pid for pid in descendants(server.pid) if part_of(pid) == "replicas"]
        assert len(pids) == replicas, pids
        for core, pid in zip(sorted(os.sched_getaffinity(0)), pids, strict=False):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {core})
        n_clients = replicas * args.slots
        ask(url, args, range(-n_clients, 0))  # warm-up
        time.sleep(SETTLE_S)
        idle, _ = spent(server.pid, lambda: time.sleep(IDLE_S))
        idle = {part: seconds / IDLE_S for part, seconds in idle.items()}
        shares = [range(i, args.requests * replicas, n_clients) for i in range(n_clients)]

        def load() -> None:
            with ThreadPoolExecutor(n_clients) as threads:
                list(threads.map(lambda share: ask(url, args, share), shares))

        cpu, wall = spent(server.pid, load)
        n = args.requests * replicas
        return Measured(idle, {part: (cpu[part] - idle[part] * wall) / n for part in cpu}, n / wall)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def spent(root: int, run: Callable[[], None]) -> tuple[dict[str, float], float]:
    """CPU seconds by part while something runs, and seconds by the clock."""
    before, began = processor_s(root), time.perf_counter()
    run()
    wall, after = time.perf_counter() - began, processor_s(root)
    return {part: after[part] - before[part] for part in after}, wall


def ask(url: str, args: argparse.Namespace, numbers: range) -> None:
    connection = http.client.HTTPConnection(url, timeout=600)
    for i in numbers:
        message = {"role": "user", "content": f"Request {i}: " + f"the number {i} and its friend {7 * i + 1}. " * 8}
        body = {"messages": [message], "max_tokens": args.tokens, "ignore_eos": True, "stream": not args.no_stream}
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        data = answer.read()
        assert answer.status == 200, data


def processor_s(root: int) -> dict[str, float]:
    found = dict.fromkeys((*PARTS.values(), "ray"), 0.0) | {"clients": time.process_time()}
    for pid in (root, *descendants(root)):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found[part_of(pid)] += (int(fields[11]) + int(fields[12])) / TICKS
    return found


def part_of(pid: int) -> str:
    command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return next((part for words, part in PARTS.items() if words in command), "ray")


def descendants(pid: int) -> list[int]:
    """All processes that a process or its children have started."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


if __name__ == "__main__":
    main()
