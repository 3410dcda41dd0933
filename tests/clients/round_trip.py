"""Runs real clients, headless, on a real server: a plain turn, a turn in which the client executes a tool, and a turn
whose prompt exceeds the context.

    npm install --prefix DIR @anthropic-ai/claude-code @openai/codex opencode-ai @mariozechner/pi-coding-agent
    python tests/clients/round_trip.py --npm DIR [--record DIR] [client ...]

The clients take 1.3 GB, so this is not part of the test suite. `lucebox launch` starts them on the tiny model, whose
context is set longer than it was trained for: its text has no meaning, but every byte comes from the server.
recorder.py forces answers and calls. To show that no network is needed, run it in a namespace without one:
`unshare -n sh -c 'ip link set lo up && exec python tests/clients/round_trip.py ...'`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import gguf
from lucebox.models import catalog
from recorder import SAID, Call, Exchange, Recorder, recording, results_in

CONTEXT = 65536
PROMPT = "Say in one word how you are."
RAN = "lucebox-tool-ran"
COMMAND = f"echo {RAN} | tee proof.txt"
TIMEOUT_SECONDS = 240


@dataclass(frozen=True)
class Trial:
    """A client and how it runs without a terminal."""

    name: str
    arguments: tuple[str, ...]
    call: Call
    """A call of the client's command tool."""
    overflow: str
    """The client's message for a prompt that is too long."""


TRIALS = (
    Trial(
        "claude",
        ("--print", "--output-format", "json", "--permission-mode", "dontAsk", "--allowedTools", "Bash",
         "--no-session-persistence", "--", PROMPT),
        Call("Bash", {"command": COMMAND, "description": "Says a word"}),
        "Prompt is too long",
    ),
    Trial(
        "codex",
        ("exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "--json", PROMPT),
        Call("exec_command", {"cmd": COMMAND}),
        "Codex ran out of room in the model's context window",
    ),
    Trial(
        "opencode",
        ("run", "--pure", "--format", "json", PROMPT),
        Call("bash", {"command": COMMAND, "description": "Says a word"}),
        "ContextOverflowError",
    ),
    Trial(
        "pi",
        ("--print", "--mode", "json", "--no-session", "--offline", PROMPT),
        Call("bash", {"command": COMMAND}),
        '{"type":"compaction_start","reason":"overflow"}',
    ),
)  # fmt: skip


def make_model(path: Path) -> None:
    """Copies the tiny model and sets a long context."""
    shutil.copyfile(catalog.fetch("tiny-hybrid"), path)
    reader = gguf.GGUFReader(path, "r+")
    context = reader.fields["qwen35.context_length"]
    context.parts[context.data[0]][0] = CONTEXT
    reader.data.flush()


@contextmanager
def served(model: Path) -> Iterator[str]:
    """Starts a server; yields its URL."""
    flags = ["--json", "--port", "0", "--context", str(CONTEXT), "--alias", "*", "--max-tokens", "96"]
    command = [sys.executable, "-m", "lucebox", "serve", str(model), *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def run(trial: Trial, url: str, folder: Path, npm: Path) -> tuple[int, str, Path]:
    """Runs a client; returns exit code, output and working directory."""
    work, home = folder / "work", folder / "home"
    for each in (work, home):
        each.mkdir(parents=True)
    programs = [str(npm / "node_modules" / ".bin"), os.environ["PATH"]]
    changes = {"HOME": str(home), "PWD": str(work), "PATH": os.pathsep.join(programs)}
    launch = [sys.executable, "-m", "lucebox", "launch", trial.name, "--url", url, "--home", str(home / "client")]
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(
            [*launch, "--", *trial.arguments],
            cwd=work,
            env={**os.environ, **changes},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            code = 124
        finally:
            end_group(process.pid)  # also ends processes the client left behind
    return code, (folder / "output").read_text(errors="replace"), work


def end_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def version(trial: Trial, npm: Path) -> str:
    program = npm / "node_modules" / ".bin" / trial.name
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60)
    return next(word for word in (done.stdout + done.stderr).split() if word[0].isdigit())


def refused(recorder: Recorder) -> list[str]:
    """The requests that the server did not answer with 200."""
    return [
        f"{each.path} answered {each.status}: {each.answer[:300].decode(errors='replace')}"
        for each in recorder.exchanges
        if each.body is not None and each.status != 200
    ]


def plain_turn(trial: Trial, url: str, folder: Path, npm: Path) -> tuple[list[str], list[Exchange]]:
    """Runs a turn without tools; returns the problems found, and the requests."""
    with recording(url) as recorder:
        code, output, _ = run(trial, recorder.url, folder, npm)
    problems = refused(recorder)
    if code != 0:
        problems.append(f"exit code {code}: {output[-500:]}")
    if SAID not in output:
        problems.append(f"the answer is not in the client's output: {output[-500:]}")
    return problems, recorder.exchanges


def tool_turn(trial: Trial, url: str, folder: Path, npm: Path) -> tuple[list[str], list[Exchange]]:
    """Runs a turn with a tool call; returns like plain_turn."""
    with recording(url, trial.call) as recorder:
        code, output, work = run(trial, recorder.url, folder, npm)
    problems = refused(recorder)
    if code != 0:
        problems.append(f"exit code {code}: {output[-500:]}")
    if not (work / "proof.txt").exists():
        problems.append("the tool was not executed")
    returned = [result for each in recorder.exchanges for result in results_in(each.body or {})]
    if not any(RAN in result for result in returned):
        problems.append(f"the tool's result did not come back, only {returned}")
    if SAID not in output:
        problems.append(f"the answer is not in the client's output: {output[-500:]}")
    return problems, recorder.exchanges


def long_turn(trial: Trial, url: str, folder: Path, npm: Path) -> tuple[list[str], list[Exchange]]:
    """Runs a turn whose prompt exceeds the context: the client must report it in its own words, or compact."""
    with recording(url, extra_words=CONTEXT) as recorder:
        _, output, _ = run(trial, recorder.url, folder, npm)
    problems = [] if trial.overflow in output else [f"it does not say {trial.overflow!r}: {output[-500:]}"]
    return problems, recorder.exchanges


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="*", default=[trial.name for trial in TRIALS], metavar="client")
    parser.add_argument("--npm", type=Path, required=True, help="the folder with the clients' node_modules")
    parser.add_argument("--record", type=Path, help="a folder for the requests; fixtures.py shortens them")
    args = parser.parse_args()
    is_good = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = folder / "tiny.gguf"
        make_model(model)
        with served(model) as url:
            for trial in TRIALS:
                if trial.name not in args.clients:
                    continue
                for kind, turn in (("plain", plain_turn), ("tool", tool_turn), ("long", long_turn)):
                    problems, exchanges = turn(trial, url, folder / f"{trial.name}-{kind}", args.npm.absolute())
                    client = f"{trial.name} {version(trial, args.npm)}"
                    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
                    n = sum(each.body is not None for each in exchanges)
                    print(f"{client} {date} {kind}: {n} requests,", end=" ")
                    print("; ".join(problems) or "good", flush=True)
                    is_good &= not problems
                    if args.record and turn is not long_turn:
                        record(args.record / f"{trial.name}-{kind}.json", client, date, exchanges)
    return 0 if is_good else 1


def record(path: Path, client: str, date: str, exchanges: list[Exchange]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    requests = [{"path": each.path, "headers": each.headers, "body": each.body} for each in exchanges]
    path.write_text(json.dumps({"client": client, "date": date, "requests": requests}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
