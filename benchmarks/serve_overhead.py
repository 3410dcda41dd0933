"""The cost of the server on top of the engine: tokens/s of one stream and time to its first token, over HTTP or not.

serve_overhead.py [MODEL] [-n TOKENS] [-p PROMPT] [-r RUNS] [--threads N]

The sides take turns, so other load on the machine falls on both. Each prompt is new, so nothing is reused. The client
reads the stream from a socket as it comes. Processor time is that of the process with the engine: unlike wall time, it
gives the cost of a token on a busy machine too.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from lucebox import LLM, Sampling

CONTEXT = 2048


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("-n", "--tokens", type=int, default=128)
    parser.add_argument("-p", "--prompt", type=int, default=128)
    parser.add_argument("-r", "--runs", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1, help="of the engine; leave a core for HTTP (default 1)")
    args = parser.parse_args()

    command = [sys.executable, "-m", "lucebox", "serve", args.model, "--json", "--port", "0", "--slots", "1"]
    flags = ["--context", str(CONTEXT), "--threads", str(args.threads), "--prefix-cache", "0"]
    server = subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        facts = json.loads(server.stdout.readline())
        connection = http.client.HTTPConnection(facts["url"].removeprefix("http://"))  # kept alive, as clients do
        with LLM(args.model, context=CONTEXT, threads=args.threads, draft="none") as llm:
            measure(llm, connection, server.pid, args)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
    return 0


def measure(llm: LLM, connection: http.client.HTTPConnection, server_pid: int, args: argparse.Namespace) -> None:
    random = np.random.default_rng(0)
    rows = []
    for run in range(args.runs + 1):
        # Two prompts a run: neither side may find the prompt of the other in its caches.
        prompts = [random.integers(100, llm.info.vocab - 100, args.prompt).tolist() for _ in range(2)]
        sides = [
            (bare(llm, prompts[0], args.tokens), os.getpid()),
            (served(connection, prompts[1], args.tokens), server_pid),
        ]
        order = (0, 1) if run % 2 else (1, 0)
        times = {side: timed(*sides[side], args.tokens) for side in order}
        if run:  # the first warms both up
            rows.append((*times[0], *times[1]))
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    print(f"{'':<10}{'first token, ms':>18}{'tokens/s':>12}{'processor, ms a request':>26}")
    for name, (first, rate, cpu) in (("engine", columns[:3]), ("server", columns[3:])):
        print(f"{name:<10}{1e3 * np.median(first):>18.2f}{np.median(rate):>12.2f}{1e3 * np.median(cpu):>26.1f}")
    added, lost = 1e3 * np.median(columns[3] - columns[0]), 100 * np.median(1 - columns[4] / columns[1])
    cpu = 100 * np.median(columns[5] / columns[2] - 1)
    print(f"median of {len(rows)} pairs: {added:+.2f} ms to the first token, {lost:+.2f} % of tokens/s lost, ", end="")
    print(f"{cpu:+.2f} % processor time")


def timed(pieces: Iterator[object], pid: int, n_tokens: int) -> tuple[float, float, float]:
    """Seconds to the first piece, tokens a second after it, and seconds of processor time."""
    start, cpu = time.perf_counter(), processor_s(pid)
    times = [time.perf_counter() for _ in pieces]
    return times[0] - start, (n_tokens - 1) / (times[-1] - times[0]), processor_s(pid) - cpu


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def bare(llm: LLM, prompt: list[int], n_tokens: int) -> Iterator[object]:
    for chunk in llm.generate(prompt, Sampling(max_tokens=n_tokens, ignore_eos=True), stream=True):
        if chunk.result is None:
            yield chunk


def served(connection: http.client.HTTPConnection, prompt: list[int], n_tokens: int) -> Iterator[object]:
    """Pieces of text, nearly one for each token: one that is only part of a character has none."""
    body = {
        "prompt": prompt,
        "max_tokens": n_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(response.read().decode())
    for line in response:
        if line.startswith(b'data: {"id"') and b'"finish_reason":null' in line:
            yield line


if __name__ == "__main__":
    sys.exit(main())
