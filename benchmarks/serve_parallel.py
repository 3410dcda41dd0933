"""Streaming clients beside the engine's own passes: serve_parallel.py [MODEL] [-c CLIENTS] [-n TOKENS] [-p PROMPT]

The server answers the clients at the same time; its tokens per second are counted from the last client's first token to
the first client's last. Then the engine alone decodes as many sequences of the same lengths (`lucebox bench
--parallel`). The share is what is left of the engine's rate behind scheduler, text and HTTP.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field

import numpy as np
from lucebox import LLM
from lucebox.measure.bench import measure


@dataclass
class Client:
    """A request of token ids, and when its tokens came."""

    prompt: list[int]
    times: list[float] = field(default_factory=list)

    def run(self, host: str, n_tokens: int) -> None:
        connection = http.client.HTTPConnection(host)
        body = {"prompt": self.prompt, "max_tokens": n_tokens, "ignore_eos": True, "stream": True, "temperature": 0}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        for line in response:
            if line.startswith(b"data: {"):
                self.times.append(time.perf_counter())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("-c", "--clients", type=int, default=16)
    parser.add_argument("-n", "--tokens", type=int, default=128)
    parser.add_argument("-p", "--prompt", type=int, default=128)
    parser.add_argument("-r", "--runs", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="of the engine; leave a core for HTTP (default 1)")
    args = parser.parse_args()
    context = args.prompt + args.tokens

    flags = ["--context", str(context), "--threads", str(args.threads), "--device", args.device, "--draft", "none"]
    command = [sys.executable, "-m", "lucebox", "serve", args.model, "--json", "--port", "0"]
    command += ["--slots", str(args.clients), "--prefix-cache", "0", *flags]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        host = json.loads(server.stdout.readline())["url"].removeprefix("http://")
        served = [rate(host, args.clients, args.prompt, args.tokens, seed) for seed in range(args.runs + 1)][1:]
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
    options = {"context": context, "sessions": args.clients, "threads": args.threads, "draft": "none"}
    with LLM(args.model, device=args.device, **options) as llm:
        report = measure(
            llm, prefill=(), decode=(args.tokens - 1,), parallel=(args.clients,), depth=args.prompt, runs=args.runs
        )
    (alone,) = (m.tok_s for m in report.measurements if m.sequences == args.clients)
    best = max(served)
    print(f"{args.model}, {args.clients} clients, {args.tokens} tokens each after {args.prompt}: tokens/s of all")
    print(f"served {best:,.1f} ({', '.join(f'{one:,.1f}' for one in served)})")
    print(f"engine {alone.max:,.1f} (median {alone.median:,.1f})")
    print(f"share  {best / alone.max:.1%}")
    return 0


def rate(host: str, n_clients: int, n_prompt: int, n_tokens: int, seed: int) -> float:
    """Tokens per second of all clients while all of them receive some."""
    random = np.random.default_rng(seed)
    clients = [Client(random.integers(100, 4000, n_prompt).tolist()) for _ in range(n_clients)]
    threads = [threading.Thread(target=client.run, args=(host, n_tokens)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # An event may carry several tokens, so they are counted by their share of the answer.
    first, last = max(client.times[0] for client in clients), min(client.times[-1] for client in clients)
    shares = [sum(first <= at <= last for at in client.times) / len(client.times) for client in clients]
    return n_tokens * sum(shares) / (last - first)


if __name__ == "__main__":
    sys.exit(main())
