"""A long session of a coding agent: agent_hour.py [MODEL] [--agents N ...] [--turns N] [--tokens N] [-- FLAGS]

Each agent holds one conversation with tools on one server. In each turn the model must call a tool; the agent appends
the call and the tool's result, so that prompts grow evenly to --tokens tokens in the last turn. A second hour with the
same conversations shows what memory still grows. Then servers that have computed nothing answer some of the prompts:
their calls must be the same.

FLAGS go to `lucebox serve`. --url measures a running server with OpenAI's API instead, without memory and equality.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lucebox.figures import new_figure, save_figure
from lucebox.measure.energy import Energy, find_meter
from lucebox.measure.power_limit import Named

VOCABULARY = """
account archive balance batch cache channel client commit config context counter cursor device driver engine error
event field file filter frame handle header index input item kernel layer limit link list loader lock log matrix
memory message metric model module name node number object offset option output packet page parser path plan pool
port prefix process queue range reader
"""
WORDS = VOCABULARY.split()
FILES = [f"src/{word}.py" for word in WORDS[:12]]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Reads a file of the project.",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "enum": FILES},
                    "reason": {"type": "string", "maxLength": 24},
                },
                "required": ["path", "reason"],
                "additionalProperties": False,
            },
        },
    }
]
SYSTEM = "You are an agent that reviews a project. Read its files one after the other, and say why you read each."
MAX_ANSWER = 256
SPARE = 1024
"""Tokens of the context beyond the last prompt and its answer."""
MIN_RESULT, SEAM = 16, 20  # tokens: of a tool's result, and of what the template puts around it
TIMEOUT_S = 600


@dataclass(frozen=True)
class Turn:
    agent: int
    turn: int
    prompt_tokens: int
    cached_tokens: int
    first_token_s: float
    total_s: float
    completion_tokens: int
    prefill_ms: float | None
    decode_ms: float | None


@dataclass
class Hour:
    """Measurements of one run of all agents."""

    agents: int
    turns: list[Turn] = field(default_factory=list)
    seconds: float = 0.0
    joules: float | None = None
    memory: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """MiB at some moments: `resident` of the server's process, and `device` in use."""
    equal: dict[int, bool] = field(default_factory=dict)
    """Whether a fresh server gave the same call, by turn."""


@dataclass
class Agent:
    number: int
    random: random.Random
    messages: list[dict[str, Any]]
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Messages of the assistant, each with a tool call, by turn."""


class Server:
    def __init__(self, url: str, process: subprocess.Popen[str] | None, model: str) -> None:
        """process: None for a server of --url."""
        self.host, self.process, self.model = urlsplit(url).netloc, process, model

    def post(self, path: str, body: dict[str, Any]) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self.host, timeout=TIMEOUT_S)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"{path} answered {response.status}: {response.read()[:500].decode()}")
        return response

    def characters_per_token(self, text: str) -> float:
        if self.process is None:
            return 4.0
        tokens = json.loads(self.post("/v1/tokenize", {"content": text}).read())["tokens"]
        return len(text) / len(tokens)

    def memory(self) -> dict[str, float | None]:
        if self.process is None:
            return {"resident": None, "device": None}
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        return {"resident": resident / 1024, "device": device_mib()}


def device_mib() -> float | None:
    """Memory in use on the first NVIDIA GPU; None without one."""
    used = nvidia("memory.used")
    return None if used is None else float(used)


def nvidia(query: str) -> str | None:
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@contextmanager
def started(model: str, flags: Sequence[str]) -> Iterator[Server]:
    command = [sys.executable, "-m", "lucebox", "serve", model, "--port", "0", "--json", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit("the server did not start")
        facts = json.loads(line)
        yield Server(facts["url"], process, facts["model"])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def text_of(choose: random.Random, n_characters: int) -> str:
    """Random assignments, one a line."""
    lines, size = [], 0
    while size < n_characters:
        words = choose.choices(WORDS, k=4)
        line = f"    {words[0]}.{words[1]} = {words[2]}({words[3]}, {choose.randrange(1000)})"
        lines.append(line)
        size += len(line) + 1
    return "\n".join(lines)[:n_characters]


def body_of(server: Server, messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "model": server.model,
        "messages": messages,
        "tools": TOOLS,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "chat_template_kwargs": {"enable_thinking": False},  # random weights think without end
        "temperature": 0,
        "max_tokens": MAX_ANSWER,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def ask(server: Server, messages: list[dict[str, Any]], agent: int, turn: int) -> tuple[dict[str, Any], Turn]:
    """The assistant's message, and its times as the client sees them."""
    began = time.perf_counter()
    first_s = None
    parts: dict[int, dict[str, Any]] = {}
    content = ""
    last: dict[str, Any] = {}
    for line in server.post("/v1/chat/completions", body_of(server, messages)):
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise SystemExit(f"agent {agent}, turn {turn}: {event['error']}")
        last = event if event.get("usage") else last
        for choice in event["choices"]:
            delta = choice["delta"]
            content += delta.get("content") or ""
            for call in delta.get("tool_calls") or ():
                one = parts.setdefault(call["index"], {"id": "", "name": "", "arguments": ""})
                one["id"] += call.get("id") or ""
                one["name"] += call["function"].get("name") or ""
                one["arguments"] += call["function"].get("arguments") or ""
            if first_s is None and (delta.get("content") or delta.get("tool_calls") or delta.get("reasoning_content")):
                first_s = time.perf_counter() - began
    total_s = time.perf_counter() - began
    if not parts or first_s is None:
        raise SystemExit(f"agent {agent}, turn {turn}: the model called no tool, it wrote {content[:200]!r}")
    calls = [
        {"id": one["id"], "type": "function", "function": {"name": one["name"], "arguments": one["arguments"]}}
        for one in parts.values()
    ]
    usage, timings = last["usage"], last.get("timings") or {}
    row = Turn(
        agent=agent,
        turn=turn,
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
        first_token_s=first_s,
        total_s=total_s,
        completion_tokens=usage["completion_tokens"],
        prefill_ms=timings.get("prefill_ms"),
        decode_ms=timings.get("decode_ms"),
    )
    return {"role": "assistant", "content": content, "tool_calls": calls}, row


def run_hour(server: Server, n_agents: int, n_turns: int, n_tokens: int, energy: Energy | None) -> tuple[Hour, Agent]:
    """Runs all agents concurrently. Returns the measurements, and the first agent with its conversation."""
    hour = Hour(n_agents)
    per_token = server.characters_per_token(text_of(random.Random(0), 4000))
    agents = []
    for number in range(n_agents):
        choose = random.Random(number)
        task = f"Project {number}. " + text_of(choose, round(200 * per_token))
        agents.append(Agent(number, choose, [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task}]))

    def work(agent: Agent) -> None:
        for turn in range(1, n_turns + 1):
            message, row = ask(server, agent.messages, agent.number, turn)
            hour.turns.append(row)
            agent.calls.append(message)
            # Equal shares of what is left: the first prompt has the tools, and calls have the length that the model
            # gives them. The call and what surrounds a result are new tokens, too.
            step = (n_tokens - row.prompt_tokens) / max(1, n_turns - turn)
            n_result = max(MIN_RESULT, round(step) - row.completion_tokens - SEAM)
            result = text_of(agent.random, round(n_result * per_token))
            call_id = message["tool_calls"][0]["id"]
            agent.messages += [message, {"role": "tool", "tool_call_id": call_id, "content": result}]
            if agent.number == 0 and turn % max(1, n_turns // 10) == 0:
                print(f"turn {turn} of {n_turns}: a prompt of {row.prompt_tokens} tokens", file=sys.stderr, flush=True)
            if agent.number == 0 and turn in (max(1, n_turns // 10), n_turns // 2, n_turns):
                hour.memory[f"turn {turn}"] = server.memory()

    failures: list[BaseException] = []

    def guarded(agent: Agent) -> None:
        try:
            work(agent)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(agent,)) for agent in agents]
    with nullcontext() if energy is None else energy:
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        hour.seconds = time.perf_counter() - began
    hour.joules = None if energy is None else energy.joules
    if failures:
        raise failures[0]
    return hour, agents[0]


def is_same(agent: Agent, turn: int, model: str, flags: Sequence[str]) -> bool:
    """Whether a server that has computed nothing gives the same call."""
    with started(model, [*flags, "--prefix-cache", "0"]) as server:
        message, _ = ask(server, agent.messages[: 2 * turn], 0, turn)
    return function_of(message) == function_of(agent.calls[turn - 1])


def function_of(message: dict[str, Any]) -> tuple[str, list[Any]]:
    """The message without the calls' ids, which are random."""
    return message["content"], [call["function"] for call in message["tool_calls"]]


# --- the report


def near(hour: Hour, turn: int, n_turns: int) -> list[Turn]:
    """The turns around one, for a median of several."""
    width = max(1, n_turns // 20)
    return [one for one in hour.turns if turn - width < one.turn <= turn]


def print_report(hour: Hour, n_turns: int) -> None:
    print(f"\n{hour.agents} agent{'s' if hour.agents > 1 else ''}, {n_turns} turns, {hour.seconds:.1f} s")
    print(
        f"{'turn':>5}{'prompt':>9}{'cached':>9}{'new':>7}{'prefill':>11}{'first token':>13}{'slowest':>10}{'turn':>9}"
    )
    for turn in sorted({max(1, n_turns * i // 10) for i in range(1, 11)}):
        rows = near(hour, turn, n_turns)
        prompt, cached = (
            statistics.median(values)
            for values in zip(*((r.prompt_tokens, r.cached_tokens) for r in rows), strict=True)
        )
        new = statistics.median(row.prompt_tokens - row.cached_tokens for row in rows)
        first = statistics.median(row.first_token_s for row in rows)
        prefill = statistics.median(row.prefill_ms or 0 for row in rows) / 1e3
        slowest = max(row.first_token_s for row in rows)
        total = statistics.median(row.total_s for row in rows)
        seconds = f"{prefill:>9.3f} s{first:>11.3f} s{slowest:>8.3f} s{total:>7.3f} s"
        print(f"{turn:>5}{prompt:>9.0f}{cached:>9.0f}{new:>7.0f}{seconds}")
    n_prompt, n_cached = (sum(getattr(row, name) for row in hour.turns) for name in ("prompt_tokens", "cached_tokens"))
    n_written = sum(row.completion_tokens for row in hour.turns)
    print(f"cached {n_cached / n_prompt:.1%} of {n_prompt} prompt tokens; {n_written} tokens written")
    print(f"first token of the last turns: {growth(hour, n_turns):.2f}x that of turn {max(1, n_turns // 10)}")
    if hour.joules is not None:
        work = n_written + n_prompt - n_cached
        written, computed = n_written / hour.joules, work / hour.joules
        print(f"{hour.joules:.0f} J: {written:.3f} written and {computed:.3f} computed tokens per J")
    for when, memory in hour.memory.items():
        shown = [f"{name} {mib:.0f} MiB" for name, mib in memory.items() if mib is not None]
        print(f"memory, {when}: {', '.join(shown) or 'not read'}")
    for turn, same in hour.equal.items():
        print(f"turn {turn}, a fresh server: {'the same call' if same else 'ANOTHER CALL'}")


def growth(hour: Hour, n_turns: int) -> float:
    """Ratio of median times to the first token: the last turns to the turns around a tenth of the session."""
    early, late = near(hour, max(1, n_turns // 10), n_turns), near(hour, n_turns, n_turns)
    return statistics.median(r.first_token_s for r in late) / statistics.median(r.first_token_s for r in early)


def save_plot(hours: Sequence[Hour], title: str, path: Path) -> None:
    figure = new_figure(figsize=(7, 5.5))
    times, tokens = figure.subplots(2, 1, sharex=True)
    for hour in hours:
        label = f"{hour.agents} agent{'s' if hour.agents > 1 else ''}"
        turns = sorted({row.turn for row in hour.turns})
        by_turn = [[row for row in hour.turns if row.turn == turn] for turn in turns]
        times.plot(turns, [statistics.median(row.first_token_s for row in rows) for rows in by_turn], label=label)
    first = [row for row in hours[0].turns if row.agent == 0]
    tokens.plot([row.turn for row in first], [row.prompt_tokens for row in first], label="prompt")
    tokens.plot([row.turn for row in first], [row.cached_tokens for row in first], label="cached")
    times.set_ylabel("first token, s")
    times.set_ylim(bottom=0)
    tokens.set_ylabel("tokens")
    tokens.set_xlabel("turn")
    for axes in (times, tokens):
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=10)
    save_figure(figure, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="tiny-hybrid")
    parser.add_argument("--url", help="a running server, in place of one that is started")
    parser.add_argument("--agents", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=60_000, help="of the last prompt (default 60000)")
    parser.add_argument("--checks", type=int, default=3, help="prompts that fresh servers answer (default 3)")
    parser.add_argument("--once", action="store_true", help="no second hour")
    parser.add_argument("--json", type=Path, help="file for all turns")
    parser.add_argument("--plot", type=Path, help="file for a plot")
    own, flags = split(sys.argv[1:])
    args = parser.parse_args(own)
    context = args.tokens + MAX_ANSWER + SPARE
    flags = ["--context", str(context), "--kv-tokens", str(context * max(args.agents)), *flags]
    flags = ["--slots", str(max(args.agents)), *flags]
    pci = nvidia("pci.bus_id")
    meter = None if pci is None or "cpu" in flags else find_meter(Named("cuda", pci[-12:]))

    hours = []
    for n_agents in args.agents:
        # A server of its own: another hour's prefixes would be found.
        with started(args.model, flags) if args.url is None else running(args.url) as server:
            hour, agent = run_hour(server, n_agents, args.turns, args.tokens, None if meter is None else meter.energy())
            if args.url is None and not args.once:
                again, _ = run_hour(server, n_agents, args.turns, args.tokens, None)
                hour.memory["second hour"] = again.memory[f"turn {args.turns}"]
        if args.url is None:
            for turn in sorted({max(1, args.turns * (i + 1) // args.checks) for i in range(args.checks)}):
                hour.equal[turn] = is_same(agent, turn, args.model, flags)
        hours.append(hour)
        print_report(hour, args.turns)
    if args.json:
        args.json.write_text(json.dumps([asdict(hour) for hour in hours], indent=1))
    if args.plot:
        save_plot(hours, f"{Path(args.model).name}: {args.turns} turns to {args.tokens} tokens", args.plot)
    return 0 if all(same for hour in hours for same in hour.equal.values()) else 1


def split(words: list[str]) -> tuple[list[str], list[str]]:
    """The words before and after `--`."""
    return (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])


@contextmanager
def running(url: str) -> Iterator[Server]:
    models = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)
    models.request("GET", "/v1/models")
    yield Server(url, None, json.loads(models.getresponse().read())["data"][0]["id"])


if __name__ == "__main__":
    sys.exit(main())
