"""Runs real clients, headless, on a real server: a task in which the client reads a file, edits it and runs a test, and
a turn whose prompt exceeds the context.

    npm install --prefix DIR @anthropic-ai/claude-code @openai/codex opencode-ai @mariozechner/pi-coding-agent ...
    PATH=DIR/node_modules/.bin:$PATH python tests/clients/round_trip.py [--record DIR] [client ...]

The clients take gigabytes, so this is not part of the test suite. `lucebox launch` starts them, from PATH. The server's
model writes the answers of trials.py (task.py); its context is set longer than it was trained for. To show that no
network is needed, run it in a namespace without one:
`unshare -n sh -c 'ip link set lo up && exec python tests/clients/round_trip.py ...'`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

import gguf
from lucebox.cli.clients import CLIENTS
from lucebox.models import catalog
from recorder import Exchange, Recorder, recording, results_in
from task import CONTEXT, PASSED, PROMPT, SAID, TEST, WRONG, make_project, script_of
from trials import TRIALS, Trial

TIMEOUT_SECONDS = 300


def make_model(path: Path) -> None:
    """Copies the tiny model and sets a long context."""
    shutil.copyfile(catalog.fetch("tiny-hybrid"), path)
    reader = gguf.GGUFReader(path, "r+")
    context = reader.fields["qwen35.context_length"]
    context.parts[context.data[0]][0] = CONTEXT
    reader.data.flush()


@contextmanager
def served(model: Path, script: Path) -> Iterator[str]:
    """Starts a server whose model follows a script; yields its URL."""
    command = [sys.executable, str(Path(__file__).with_name("task.py")), str(model), str(script)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def run(trial: Trial, url: str, folder: Path) -> tuple[int, str]:
    """Runs a client; returns exit code and output."""
    home, work = folder / "home", folder / "work"
    home.mkdir()
    changes = {"HOME": str(home), "PWD": str(work)}
    launch = [sys.executable, "-m", "lucebox", "launch", trial.name, "--url", url, "--home", str(home / "client")]
    command = [*launch, "--", *trial.arguments]
    if trial.driver:
        command = [sys.executable, str(Path(__file__).with_name(trial.driver)), PROMPT, *launch]
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(
            command,
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
    return code, (folder / "output").read_text(errors="replace")


def end_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def version(trial: Trial) -> str:
    program = Path(shutil.which(CLIENTS[trial.name].program) or "").resolve()
    command = [str(program), "--version"]
    if trial.driver:  # Open WebUI does not say
        code = f"from importlib.metadata import version; print(version({trial.name!r}))"
        command = [str(program.with_name("python")), "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return str(re.findall(r"\d+\.\d+[\w.]*", done.stdout + done.stderr)[0])


def refused(recorder: Recorder) -> list[str]:
    """The requests that the server did not answer with 200."""
    return [
        f"{each.path} answered {each.status}: {each.answer[:300].decode(errors='replace')}"
        for each in recorder.exchanges
        if each.body is not None and each.status != 200
    ]


def task_turn(trial: Trial, url: str, folder: Path) -> tuple[list[str], list[Exchange]]:
    """The client reads the file, edits it, and runs the test; returns the problems found, and the requests."""
    with recording(url) as recorder:
        code, output = run(trial, recorder.url, folder)
    problems = refused(recorder)
    if code != 0:
        problems.append(f"exit code {code}: {output[-500:]}")
    test = subprocess.run(TEST.split(), cwd=folder / "work", capture_output=True, text=True)
    if PASSED not in test.stdout:
        problems.append(f"the test does not pass: {test.stderr}")
    returned = [result for each in recorder.exchanges for result in results_in(each.body or {})]
    for text in (WRONG, PASSED) if trial.has_tools else ():
        if not any(text.strip() in result for result in returned):
            problems.append(f"no result has {text!r}, only {returned}")
    if SAID not in output:
        problems.append(f"the answer is not in the client's output: {output[-500:]}")
    return problems, recorder.exchanges


def long_turn(trial: Trial, url: str, folder: Path) -> tuple[list[str], list[Exchange]]:
    """Runs a turn whose prompt exceeds the context: the client must report it in its own words, or compact."""
    with recording(url, extra_words=CONTEXT) as recorder:
        _, output = run(trial, recorder.url, folder)
    problems = [] if trial.overflow in output else [f"it does not say {trial.overflow!r}: {output[-500:]}"]
    return problems, recorder.exchanges


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="*", default=[trial.name for trial in TRIALS], metavar="client")
    parser.add_argument("--record", type=Path, help="a folder for the requests; fixtures.py shortens them")
    args = parser.parse_args()
    is_good = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, script = folder / "tiny.gguf", folder / "script.json"
        make_model(model)
        with served(model, script) as url:
            for trial in TRIALS:
                if trial.name not in args.clients:
                    continue
                for kind, turn in (("task", task_turn), ("long", long_turn)):
                    if turn is long_turn and not trial.overflow:
                        continue
                    place = folder / f"{trial.name}-{kind}"
                    (place / "work").mkdir(parents=True)
                    make_project(place / "work")
                    steps = script_of(trial.steps(str(place / "work" / "calc.py")))
                    script.write_text(json.dumps({"script": steps, "has_tools": trial.has_tools}))
                    problems, exchanges = turn(trial, url, place)
                    client = f"{trial.name} {version(trial)}"
                    date = datetime.now(timezone.utc).strftime("%Y-%m-%d")
                    n = sum(each.body is not None for each in exchanges)
                    print(f"{client} {date} {kind}: {n} requests,", end=" ")
                    print("; ".join(problems) or "good", flush=True)
                    is_good &= not problems
                    if args.record and turn is task_turn:
                        record(args.record / f"{trial.name}.json", client, date, exchanges)
    return 0 if is_good else 1


def record(path: Path, client: str, date: str, exchanges: list[Exchange]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    requests = [{"path": each.path, "headers": each.headers, "body": each.body} for each in exchanges]
    path.write_text(json.dumps({"client": client, "date": date, "requests": requests}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
