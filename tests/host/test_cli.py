"""The `lucebox` command on the embedded model: in this process, in a child for signals, pipes and tracebacks."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields
from pathlib import Path
from typing import Any

import gguf
import pytest
from lucebox.cli import main
from lucebox.cli.options import NOT_ENGINE_FLAGS, field_docs, parse_field
from lucebox.errors import InvalidRequestError
from lucebox.measure import bench
from lucebox.options import EngineOptions, Sampling

MODEL = "tiny-hybrid"
PROMPT = "def fibonacci(n):\n"
COMMAND = [sys.executable, "-m", "lucebox"]


def lucebox(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Runs the command in this process with these streams; a child process would spend half a second on imports."""
    given, out, err = (io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8") for text in (stdin, "", ""))
    terminal, sys.stdin = sys.stdin, given
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(args)
    except SystemExit as exit:
        code = int(exit.code or 0)
    finally:
        sys.stdin = terminal
    out.seek(0)
    err.seek(0)
    return subprocess.CompletedProcess(args, code, out.read(), err.read())


def process(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *args], input=stdin, capture_output=True, text=True, timeout=120)


def stdout_of(*args: str, stdin: str = "") -> str:
    done = lucebox(*args, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def json_of(*args: str, stdin: str = "") -> Any:
    return json.loads(stdout_of(*args, "--json", stdin=stdin))


@pytest.fixture(autouse=True)
def short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory's bandwidth from 16 MiB: no test needs the right number, and each would take a second for it."""
    monkeypatch.setattr(bench, "BANDWIDTH_BYTES", 16 << 20)


# run


@pytest.fixture(scope="module")
def greedy() -> dict[str, Any]:
    """The reference continuation of PROMPT."""
    return dict(json_of("run", MODEL, PROMPT, "-n", "24"))


def test_run_streams_the_text_and_tells_speed_on_stderr(greedy: dict[str, Any]) -> None:
    done = process("run", MODEL, PROMPT, "-n", "24")
    assert done.stdout == greedy["text"] + "\n"
    assert "qwen35" in done.stderr
    assert done.stderr.count("tok/s") == 2
    assert done.stderr.rstrip().endswith("| length")


def test_run_json_is_consistent(greedy: dict[str, Any]) -> None:
    assert greedy["finish_reason"] == "length"
    assert len(greedy["ids"]) == greedy["usage"]["completion_tokens"] == 24
    assert greedy["usage"]["prompt_tokens"] > 3
    timings = greedy["timings"]
    assert timings["decode_tok_s"] == pytest.approx(timings["decode_tokens"] / timings["decode_s"])
    assert greedy["logprobs"] is None


def test_run_quiet_says_nothing_about_the_text(greedy: dict[str, Any]) -> None:
    done = process("run", MODEL, PROMPT, "-n", "24", "--quiet")
    assert (done.stdout, done.stderr) == (greedy["text"] + "\n", "")


@pytest.mark.parametrize("prompt", [[], ["-"]])
def test_run_reads_the_prompt_from_stdin_less_its_last_newline(greedy: dict[str, Any], prompt: list[str]) -> None:
    assert stdout_of("run", MODEL, *prompt, "-n", "24", stdin=PROMPT + "\n") == greedy["text"] + "\n"


def test_run_takes_the_prompt_after_flags(greedy: dict[str, Any]) -> None:
    assert stdout_of("run", MODEL, "-n", "24", PROMPT) == greedy["text"] + "\n"


def test_run_sampling_flags_reach_the_engine(greedy: dict[str, Any]) -> None:
    sampled = [json_of("run", MODEL, PROMPT, "-n", "24", "-t", "1.5", "--seed", seed) for seed in ("3", "3", "4")]
    assert sampled[0]["ids"] == sampled[1]["ids"]
    assert sampled[0]["ids"] != sampled[2]["ids"]
    first = greedy["ids"][0]
    forbidden = json_of("run", MODEL, PROMPT, "-n", "1", "--logit-bias", f"{first}=-100", "--logprobs", "2")
    assert forbidden["ids"] != [first]
    assert len(forbidden["logprobs"][0]["top"]) == 2


def test_run_with_drafts_writes_the_same_and_tells_tokens_per_step(greedy: dict[str, Any]) -> None:
    exact = ("--activations", "f32", "--kv", "f32")
    plain = json_of("run", MODEL, PROMPT, "-n", "24", "--draft", "none", *exact)
    assert (plain["usage"]["drafts"], plain["timings"]["tokens_per_step"]) == (None, 1)
    drafted = json_of("run", MODEL, PROMPT, "-n", "24", "--draft", "suffix", "--draft-budget", "8", *exact)
    default = json_of("run", MODEL, PROMPT, "-n", "24", *exact)
    assert drafted["ids"] == default["ids"] == plain["ids"]
    assert default["usage"]["drafts"].keys() == drafted["usage"]["drafts"].keys()
    assert drafted["usage"]["drafts"].keys() == {"verifies", "drafted_tokens", "accepted_tokens", "by_length"}
    done = lucebox("run", MODEL, PROMPT, "-n", "4", "--draft", "suffix")
    assert "| draft suffix\n" in done.stderr
    assert done.stderr.rstrip().endswith(" tokens/step | length")


def test_run_stop_string_ends_the_text(greedy: dict[str, Any]) -> None:
    word = greedy["text"].split()[1]
    stopped = json_of("run", MODEL, PROMPT, "-n", "24", "--stop", word)
    assert stopped["finish_reason"] == "stop"
    assert stopped["text"] == greedy["text"].partition(word)[0]


def test_run_chat_uses_the_template() -> None:
    plain, chat, system = (
        json_of("run", MODEL, "hello", "-n", "1", *flags)["usage"]["prompt_tokens"]
        for flags in ([], ["--chat"], ["--chat", "--system", "You write Python."])
    )
    assert plain < chat < system


def test_a_chat_run_prints_its_sampling_and_its_seed() -> None:
    first = lucebox("run", MODEL, "hello", "--chat", "-n", "8")
    line = next(line for line in first.stderr.splitlines() if line.startswith("sampling: "))
    assert line.startswith("sampling: temperature 0.7, top_k 20, top_p 0.8, ") and "makers of the model" in line
    seed = line.partition("seed ")[2].split()[0]
    assert stdout_of("run", MODEL, "hello", "--chat", "-n", "8", "--seed", seed) == first.stdout
    assert json_of("run", MODEL, "x = ", "--regex", "[0-9]{3}", "-n", "20")["text"].isdecimal()


def test_run_interrupted_keeps_what_was_written() -> None:
    command = [*COMMAND, "run", MODEL, PROMPT, "-n", "8000", "--ignore-eos", "--isa", "scalar", "--draft", "none"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, notes = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (first + rest).endswith(b"\n")
    assert notes.decode().rstrip().endswith(("interrupted", "| cancelled"))
    assert b"Traceback" not in notes


def test_run_ends_quietly_when_its_reader_goes() -> None:
    command = [*COMMAND, "run", MODEL, PROMPT, "-n", "8000", "--ignore-eos", "--isa", "scalar", "--draft", "none"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    notes = process.stderr.read().decode()
    assert process.wait(timeout=60) == 141
    assert "Error" not in notes and "Traceback" not in notes


# usage and errors


@pytest.mark.parametrize(
    "args",
    [
        ["nonsense"],
        ["run"],
        ["run", MODEL, PROMPT, "--no-such-flag"],
        ["run", MODEL, PROMPT, "--temp", "1"],  # no abbreviations
        ["run", MODEL, PROMPT, "one more"],
        ["run", MODEL, PROMPT, "--system", "without --chat"],
        ["run", MODEL, PROMPT, "--logit-bias", "5"],
        ["run", MODEL, PROMPT, "--activations", "f8"],
        ["run", MODEL, PROMPT, "--regex", "x", "--json-object"],
        ["bench", MODEL, "-p", "12,x"],
        ["serve", MODEL, "--prefix-cache", "2XB"],
        ["bench", MODEL, "-p", "0", "-n", "0"],
    ],
)
def test_wrong_usage_exits_with_2(args: list[str]) -> None:
    done = lucebox(*args)
    assert done.returncode == 2
    assert "error: " in done.stderr.splitlines()[-1]
    assert done.stdout == ""


@pytest.mark.parametrize("command", ["run", "chat", "inspect", "bench"])
def test_an_error_is_one_line(command: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\3\0\0\0")
    done = lucebox(command, str(broken), "--offline", stdin="hello\n")
    assert done.returncode == 1
    assert done.stderr.startswith("lucebox: error: ")
    assert "broken.gguf" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_debug_shows_where_an_error_comes_from() -> None:
    done = process("run", "no-such-model", PROMPT, "--offline", "--debug")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "ModelNotFoundError" in done.stderr


@pytest.mark.parametrize("cls", [EngineOptions, Sampling])
def test_every_option_has_a_flag_with_its_docstring(cls: type) -> None:
    words = " ".join(stdout_of("run", "--help").split())
    for field in fields(cls):
        if field.name in NOT_ENGINE_FLAGS - {"seed"}:
            continue
        assert f"--{field.name.replace('_', '-')}" in words
        first_words = " ".join(field_docs(cls)[field.name].split()[:2])
        assert field.name == "seed" or first_words in words


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("temperature", "0.5", 0.5),
        ("max_tokens", "7", 7),
        ("stop", "\n\n", ("\n\n",)),
        ("stop_ids", "3", (3,)),
        ("logit_bias", "12=-2.5", {12: -2.5}),
        ("ignore_eos", "true", True),
    ],
)
def test_parse_field(name: str, text: str, value: object) -> None:
    assert parse_field(Sampling, name, text) == value


@pytest.mark.parametrize("name, text", [("top_k", "many"), ("nonsense", "1"), ("ignore_eos", "1"), ("logit_bias", "1")])
def test_parse_field_refuses(name: str, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        parse_field(Sampling, name, text)


# chat


def chat(*lines: str, flags: tuple[str, ...] = ()) -> tuple[list[dict[str, Any]], str]:
    """The answers to lines of piped input, and stderr."""
    done = lucebox("chat", MODEL, "-n", "8", "-t", "0", "--json", *flags, stdin="\n".join(lines) + "\n")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_chat_answers_each_line_and_remembers() -> None:
    answers, notes = chat("hello " * 150, "hello", "/exit", "never read")
    assert len(answers) == 2
    first, second = (answer["usage"] for answer in answers)
    assert second["prompt_tokens"] > first["prompt_tokens"]
    assert second["cached_tokens"] > 0
    assert notes == ""


def test_chat_undo_and_reset_forget() -> None:
    answers, _ = chat("hello", "/undo", "hello", "hello", "/reset", "hello")
    lengths = [answer["usage"]["prompt_tokens"] for answer in answers]
    assert lengths[0] == lengths[1] == lengths[3] < lengths[2]
    assert answers[0]["content"] == answers[1]["content"] == answers[3]["content"]


def test_chat_save_and_load_go_on(tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    answers, _ = chat("hello", f"/save {file}", "and then?", flags=("--system", "You write Python."))
    saved = json.loads(file.read_text())
    assert [message["role"] for message in saved["messages"]] == ["system", "user", "assistant"]
    resumed, _ = chat(f"/load {file}", "and then?")
    assert resumed[0]["content"] == answers[1]["content"]
    assert resumed[0]["usage"]["prompt_tokens"] == answers[1]["usage"]["prompt_tokens"]


def test_chat_set_and_stats() -> None:
    chosen = ("/set max-tokens=6", "/set temperature=50", "/set top-p=1")
    answers, notes = chat(*chosen, "hello", "/regenerate", "/stats", "/status", "/set", "/help")
    assert answers[0]["usage"]["completion_tokens"] <= 6
    assert answers[0]["usage"]["prompt_tokens"] == answers[1]["usage"]["prompt_tokens"]
    assert answers[0]["content"] != answers[1]["content"]
    assert "tok/s" in notes
    assert "max_tokens = 6" in notes
    assert "free memory" in notes and "sampling: temperature 50" in notes
    assert "/undo" in notes


@pytest.mark.parametrize(
    "line",
    [
        "/hlep",
        "/set nonsense=1",
        "/set top_k",
        "/set top_k=x",
        "/set top_p=2",
        "/undo",
        "/regenerate",
        "/save",
        "/load no-such-file",
    ],
)
def test_chat_refuses_a_wrong_command(line: str) -> None:
    done = lucebox("chat", MODEL, stdin=line + "\n")
    assert done.returncode == 1
    assert done.stderr.startswith("lucebox: error: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_failed_command_does_not_end_a_piped_chat() -> None:
    lines = ("/save /no/such/folder/x", "/set top_k=x", "hello", "/home is a path", "// so is this")
    done = lucebox("chat", MODEL, "-n", "4", "-t", "0", "--json", stdin="\n".join(lines) + "\n")
    assert [json.loads(line)["finish_reason"] for line in done.stdout.splitlines()] == ["length"] * 3
    assert done.stderr.count("lucebox: error: ") == len(done.stderr.splitlines()) == 2
    assert done.returncode == 1


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo terminals are POSIX")
def test_chat_in_a_terminal_stops_an_answer_at_ctrl_c_and_leaves_at_ctrl_d() -> None:
    import pty

    pid, terminal = pty.fork()
    if pid == 0:
        flags = ["--ignore-eos", "--isa", "scalar", "-n", "8000", "--draft", "none"]
        os.execv(sys.executable, [*COMMAND, "chat", MODEL, *flags])
    screen = b""

    def read_until(text: bytes) -> None:
        nonlocal screen
        deadline = time.monotonic() + 60
        while text not in screen:
            assert time.monotonic() < deadline, screen.decode(errors="replace")
            screen += os.read(terminal, 4096)
        screen = screen.partition(text)[2]

    read_until(b"> ")
    os.write(terminal, b"hello\n")
    read_until(b"hello\r\n")
    while not screen:
        screen += os.read(terminal, 4096)  # the answer has begun
    os.write(terminal, b"\x03")
    read_until(b"> ")
    os.write(terminal, b"/undo\n")
    read_until(b"> ")
    assert b"error" not in screen
    os.write(terminal, b"\x04")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)


# inspect, models, version


def test_inspect_agrees_with_the_gguf_package() -> None:
    report = json_of("inspect", MODEL, "--tensors", "--full")
    reader = gguf.GGUFReader(report["path"])
    expected = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert report["metadata"].keys() == expected.keys()
    for key, value in expected.items():
        assert report["metadata"][key] == value, key
    assert [(t["name"], t["bytes"]) for t in report["tensors"]] == [(t.name, t.n_bytes) for t in reader.tensors]
    counts = Counter(tensor.tensor_type.name for tensor in reader.tensors)
    assert {share["dtype"]: share["tensors"] for share in report["quant_mix"]} == counts
    assert sum(share["bytes"] for share in report["quant_mix"]) == sum(int(t.n_bytes) for t in reader.tensors)


def test_inspect_cuts_long_values_and_says_their_length() -> None:
    report = json_of("inspect", MODEL)
    assert report["metadata"]["tokenizer.ggml.tokens"]["length"] == 8192
    assert "tensors" not in report
    text = stdout_of("inspect", MODEL)
    assert "(8,192 items)" in text
    assert "token_embd.weight" not in text
    assert max(len(line) for line in text.splitlines()) < 200
    assert "token_embd.weight" in stdout_of("inspect", MODEL, "--tensors")


def test_inspect_plans_memory_for_drafts() -> None:
    plain, drafting = (json_of("inspect", MODEL, "--draft", draft) for draft in ("none", "suffix"))
    assert (plain["draft"], drafting["draft"]) == ("none", "suffix")
    assert json_of("inspect", MODEL)["draft"] == "tiny-hybrid-dflash.BF16.gguf+suffix"
    assert drafting["memory_plan"]["total_bytes"] > plain["memory_plan"]["total_bytes"]
    assert stdout_of("inspect", MODEL, "--draft", "suffix").endswith("draft: suffix\n")
    refused = json_of("inspect", MODEL, "--draft", "absent.gguf")
    assert refused["memory_plan"] is None and "'absent.gguf' is not a file" in refused["memory_plan_error"]


def test_inspect_names_the_kernels_of_a_run() -> None:
    report = json_of("inspect", MODEL, "--device", "cpu", "--threads", "2")
    assert report["kernels"].startswith("cpu, 2 threads, ")
    assert f"\n{report['kernels']}\n" in stdout_of("inspect", MODEL, "--device", "cpu", "--threads", "2")
    assert "\na token reads 11.3 MiB of weights\n" in stdout_of("inspect", MODEL)
    text = stdout_of("inspect", MODEL, "--board", "RTX 3090")
    assert re.search(r"\na token reads [\d.]+ MiB of weights: at most [\d,]+ tok/s without drafts\n", text)


def test_inspect_plans_memory_for_the_context_asked_for() -> None:
    small, large = (json_of("inspect", MODEL, "--context", n)["memory_plan"] for n in ("256", "4096"))
    for plan in (small, large):
        assert sum(entry["bytes"] for entry in plan["entries"]) == plan["total_bytes"]
    assert large["total_bytes"] > small["total_bytes"]
    assert (small["context"], large["context"]) == (256, 4096)


def test_inspect_plans_for_a_limit_of_memory() -> None:
    flags = ("--device", "cpu", "--threads", "1", "--memory-limit")
    plan = json_of("inspect", MODEL, *flags, "40MiB")["memory_plan"]
    most = plan["largest_context"]
    assert plan["available_bytes"] == 40 * 2**20 and 0 < plan["context"] == most < plan["max_context"]
    assert f"context: {most:,} tokens; up to {most:,} fit\n" in stdout_of("inspect", MODEL, *flags, "40MiB")
    refused = lucebox("inspect", MODEL, "--board", "Voodoo 2")
    assert refused.returncode == 1 and "there is no board 'Voodoo 2'" in refused.stderr


def test_models_lists_the_embedded_one_with_its_path() -> None:
    known = {entry["name"]: entry for entry in json_of("models")["catalog"]}
    path = Path(known[MODEL]["path"])
    assert path.stat().st_size == known[MODEL]["bytes"]
    assert str(path) in stdout_of("models")


def test_version() -> None:
    facts = json_of("version")
    assert stdout_of("version").startswith(f"lucebox {facts['lucebox']}\n")
    assert facts["isa"] in facts["isas"]


# bench


def test_bench_reports_every_run_and_the_share_of_bandwidth(tmp_path: Path) -> None:
    picture = tmp_path / "bench.png"
    report = json_of("bench", MODEL, "-p", "16,32", "-n", "8", "-d", "4", "-r", "2", "--plot", str(picture))
    assert [m["label"] for m in report["measurements"]] == ["pp16", "pp32", "tg8 @4"]
    for m in report["measurements"]:
        assert len(m["seconds"]) == 2
        assert 0 < m["tok_s"]["min"] <= m["tok_s"]["median"] <= m["tok_s"]["max"]
    decode = report["measurements"][2]
    assert decode["bandwidth_share"] == pytest.approx(decode["gb_s"] / report["bandwidth_gb_s"])
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_bench_table() -> None:
    lines = stdout_of("bench", MODEL, "-p", "0", "-n", "8", "-r", "1").splitlines()
    assert "(qwen35, " in lines[0]
    assert lines[-1].split()[0] == "tg8"
    assert lines[-1].rstrip().endswith("1")


def test_bench_shows_appends_and_numerics() -> None:
    report = json_of("bench", MODEL, "-p", "0", "-n", "0", "-b", "1,4", "-r", "1", "--compare", "cpu")
    assert [m["label"] for m in report["measurements"]] == ["b1", "b4"]
    assert report["measurements"][0]["of_one_row"] == 1
    assert report["energy_source"] is None
    assert 0 < report["comparison"]["mean_kl"] < 0.1
    assert 0 < report["comparison"]["greedy_agreement"] <= 1
    text = stdout_of("bench", MODEL, "-p", "0", "-n", "0", "-b", "4", "-r", "1", "--compare", "cpu")
    assert "x one row" in text and "greedy agreement" in text


def test_bench_profile_needs_a_gpu() -> None:
    done = lucebox("bench", MODEL, "-p", "8", "-n", "0", "-r", "1", "--profile", "--device", "cpu")
    assert done.returncode == 1
    assert "needs a GPU" in done.stderr


def test_a_sheet_is_of_a_gpu(tmp_path: Path) -> None:
    done = lucebox("bench", MODEL, "-p", "8", "-n", "0", "--device", "cpu", "--sheet", str(tmp_path / "sheet.json"))
    assert done.returncode == 1 and "--sheet needs --device cuda:N, hip:N or sim" in done.stderr
    assert not (tmp_path / "sheet.json").exists()


def test_bench_compares_plain_and_speculative_decoding(tmp_path: Path) -> None:
    suite, table, picture = tmp_path / "mine.jsonl", tmp_path / "runs.csv", tmp_path / "drafts.png"
    suite.write_text('{"prompt": "import os\\n"}\n{"messages": [{"role": "user", "content": "add"}]}\n' * 2)
    flags = ("--draft", "suffix", "--suite", str(suite), "--prompts", "3", "--tokens", "12", "--activations", "f32")
    report = json_of("bench", MODEL, *flags, "--csv", str(table), "--plot", str(picture))
    assert [one["temperature"] for one in report["speculation"]] == [0, 1]
    for one in report["speculation"]:
        assert (one["draft"], one["suite"], len(one["runs"])) == ("suffix", str(suite), 3)
        assert one["ratio"] > 0 and one["plain_tok_s"] > 0
        assert all(0 < run["tokens"] <= 12 for run in one["runs"])
    assert len(table.read_text().splitlines()) == 1 + 2 * 3
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = stdout_of("bench", MODEL, *flags, "--temperature", "0")
    assert "draft suffix, budget chosen per step" in text and "speculative tok/s" in text


@pytest.mark.slow  # 2 s: two processes
def test_bench_replays_accepted_lengths(tmp_path: Path) -> None:
    flags = ("bench", MODEL, "--replay", "--draft", "mtp", "--draft-budget", "3", "--tokens", "60", "--threads", "1")
    (report,) = json_of(*flags)["speculation"]
    assert report["suite"] == "replay" and report["tokens_per_verify"] == pytest.approx(2.87, rel=0.05)
    (made,) = report["replayed"]
    assert made["is_synthetic"] and made["drafter"] == "mtp" and made["tokens_per_verify"] == pytest.approx(2.87)
    file = tmp_path / "recorded.json"
    file.write_text(json.dumps({"speculation": [report]}))
    text = stdout_of(*flags, "--replay", str(file))
    assert "accepted lengths replayed, so the texts mean nothing" in text
    assert "recorded, " in text and "walk and commit" in text


def test_bench_refuses_what_it_cannot_draft_with() -> None:
    for flags, message in (
        (["--replay", "--draft", "none"], "speculation needs a drafter"),
        (["--suite", "mmlu"], "'mmlu' is not a suite"),
        (["--suite", "gsm8k", "--offline"], "openai/gsm8k is not in the cache"),
        (["--draft", "none+suffix"], "draft cannot be 'none+suffix'"),
        (["--draft", "no-such-drafter"], "'no-such-drafter' is not a file"),
    ):
        done = lucebox("bench", MODEL, "--tokens", "4", *flags)
        assert (done.returncode, done.stdout) == (1, "")
        assert message in done.stderr
