"""A long prompt beside sequences that decode, and short requests beside a longer one: serve_beside.py MODEL

Against one server: the long prompt alone; then it begins while clients stream, whose rates before and during it are
compared, as is its time; then short requests come one after another while a prompt twice as long is computed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import statistics
import subprocess
import sys
import threading
import time

import numpy as np
from serve_parallel import Client

TOKENS = 1200  # of each client
BEFORE_S = 2.5  # the clients' rates are measured in the last two seconds of it
SHORT_PROMPT = 48


def first_token_s(host: str, prompt: list[int]) -> float:
    connection = http.client.HTTPConnection(host)
    body = {"prompt": prompt, "max_tokens": 1, "ignore_eos": True, "temperature": 0}
    start = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200, response.read()
    response.read()
    return time.perf_counter() - start


def rate(clients: list[Client], first: float, last: float) -> float:
    """Tokens per second of a client, of those that came between two times. An event may carry several tokens."""
    shares = [sum(first <= at <= last for at in client.times) / len(client.times) for client in clients]
    return TOKENS * sum(shares) / len(clients) / (last - first)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-c", "--clients", type=int, default=7)
    parser.add_argument("-p", "--prompt", type=int, default=32768)
    parser.add_argument("--device", default="cuda:0")
    args = parser.parse_args()
    random = np.random.default_rng(0)

    def ids(n: int) -> list[int]:
        return random.integers(100, 4000, n).tolist()

    flags = ["--context", str(2 * args.prompt + 256), "--device", args.device, "--draft", "none", "--prefix-cache", "0"]
    command = [sys.executable, "-m", "lucebox", "serve", args.model, "--json", "--port", "0"]
    command += ["--slots", str(args.clients + 2), *flags]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        host = json.loads(server.stdout.readline())["url"].removeprefix("http://")
        first_token_s(host, ids(args.prompt))
        alone = first_token_s(host, ids(args.prompt))
        clients = [Client(ids(512)) for _ in range(args.clients)]
        threads = [threading.Thread(target=client.run, args=(host, TOKENS)) for client in clients]
        for thread in threads:
            thread.start()
        while not all(client.times for client in clients):
            time.sleep(0.01)
        time.sleep(BEFORE_S)
        begins = time.perf_counter()
        beside = first_token_s(host, ids(args.prompt))
        ends = time.perf_counter()
        for thread in threads:
            thread.join()
        before, during = rate(clients, begins - 2, begins), rate(clients, begins, ends)
        print(f"{args.clients} sequences decode {before:.1f} tokens/s each, beside the prompt {during:.1f}, ", end="")
        print(f"a token takes {before / during:.2f} times as long")
        print(f"a prompt of {args.prompt} alone {alone:.2f} s, beside them {beside:.2f} s, {beside / alone:.2f} times")

        quick = [first_token_s(host, ids(SHORT_PROMPT)) for _ in range(4)][1:]
        long: list[float] = []
        thread = threading.Thread(target=lambda: long.append(first_token_s(host, ids(2 * args.prompt))))
        thread.start()
        time.sleep(0.5)
        short = []
        while thread.is_alive():
            short.append(first_token_s(host, ids(SHORT_PROMPT)))
            time.sleep(0.1)
        short.pop()  # the last one may have come after the prompt
        print(
            f"first token of {SHORT_PROMPT} alone {1e3 * statistics.median(quick):.0f} ms, beside a prompt of ", end=""
        )
        print(f"{2 * args.prompt} ({long[0]:.2f} s) median {1e3 * statistics.median(short):.0f} ms, ", end="")
        print(f"longest of {len(short)} {1e3 * max(short):.0f} ms")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
