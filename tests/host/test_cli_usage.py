"""The command line without a model, in this process: overview and help, hints, sizes, completion, pull and rm, tables
in narrow terminals, what stdin may hold, and the script that launch prints."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from lucebox import InvalidRequestError, LuceboxError
from lucebox.chat import profiles
from lucebox.cli import COMMANDS, build_parser, completion, console, launch, main, options, parse
from lucebox.cli.chat import Chat, Line, LineReader
from lucebox.cli.clients import CLIENTS, Endpoint
from lucebox.cli.run import read_prompt
from lucebox.cli.session import keywords_of_chat
from lucebox.measure.prompts import load_prompts
from lucebox.models import catalog
from lucebox.names import did_you_mean
from lucebox.sizes import parse_size, show_size

HEAVY = {"numpy", "jinja2", "huggingface_hub", "rich", "tokenizers", "lucebox._engine", "lucebox.api"}


def out_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    return capsys.readouterr().out


def usage_error(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


# overview


@pytest.mark.parametrize("words", [[], ["help"], ["--help"], ["-h"]])
def test_the_overview_names_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(out_of(capsys, *words).split())
    for name, about in COMMANDS.items():
        assert f" {name} {about} " in text


@pytest.mark.parametrize("code", ["import lucebox", "from lucebox.cli import main; main(['--help'])"])
def test_import_and_overview_load_nothing_heavy(code: str) -> None:
    """Heavy imports would add 0.3 s."""
    shown = f"{code}; import sys; print(sorted({HEAVY} & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == "[]\n"


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["help", "pull"], ["PULL", "--help"]):
        with pytest.raises(SystemExit) as stopped:
            main(words)
        assert stopped.value.code == 0
        assert "usage: lucebox pull MODEL" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out.startswith("lucebox ")


def test_wrong_names_get_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert usage_error(capsys, "rnu").endswith("no command 'rnu'; did you mean run?")
    assert usage_error(capsys, "xyzzy").endswith("no command 'xyzzy'; lucebox help lists them")
    assert usage_error(capsys, "help", "bnech").endswith("did you mean bench?")
    assert usage_error(capsys, "models", "--josn").endswith("unrecognized arguments: --josn; did you mean --json?")
    assert usage_error(capsys, "launch", "codecs").endswith("got 'codecs'; did you mean codex?")
    assert usage_error(capsys, "run", "m", "p", "--isa", "avx521").endswith("got 'avx521'; did you mean avx512?")
    assert main(["run", "tiny-hybird", "x", "--offline"]) == 1
    assert capsys.readouterr().err.endswith("did you mean tiny-hybrid?\n")


@pytest.mark.parametrize(
    "words, hint",
    [
        (["run", "m", "x", "--temp", "0.5"], "use --temperature X"),
        (["run", "m", "x", "--temp=0.5"], "use --temperature X"),
        (["serve", "m", "-ngl", "99"], "--device cpu, cuda:0"),
        (["chat", "m", "--ctx-size", "4096"], "use --context N"),
        (["run", "m", "x", "--n-predict", "5"], "use --max-tokens N"),
        (["run", "m", "x", "--memory-limit", "24"], "did you mean 24GB?"),
        (["bench", "m", "--csv", "a.csv"], "--csv is for --draft"),
        (["bench", "m", "--tokens", "9"], "--tokens is for --draft"),
        (["bench", "m", "--prompts", "9"], "--prompts is for --draft"),
        (["bench", "m", "--temperature", "1"], "--temperature is for --draft"),
        (["bench", "m", "--draft", "NONE", "--tokens", "9"], "--tokens is for --draft"),
    ],
)
def test_flags_that_have_no_effect_here(words: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hint in usage_error(capsys, *words)


def test_choices_may_have_any_case() -> None:
    for given, word in (("NONE", "none"), ("Auto", "auto"), ("MTP+Suffix", "mtp+suffix"), ("My-Drafter", "My-Drafter")):
        assert parse(["run", "m", "x", "--draft", given]).draft == word  # type: ignore[union-attr]
    with pytest.raises(LuceboxError, match="openai/openai_humaneval"):  # found, but not on this machine
        load_prompts("HumanEval", 1, offline=True)


def test_a_file_with_nearly_the_name_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "Model-Q4_K_M.gguf").touch()
    assert main(["inspect", str(tmp_path / "model-q4-k-m.gguf"), "--offline"]) == 1
    assert "did you mean Model-Q4_K_M.gguf?" in capsys.readouterr().err


def test_did_you_mean_is_silent_where_nothing_is_near() -> None:
    assert did_you_mean("chat", ["serve", "bench"]) == ""


@pytest.mark.parametrize(
    "words",
    [
        ["run", "absent.gguf", "x", "-t", "-1"],
        ["run", "absent.gguf", "x", "--context", "0"],
        ["run", "absent.gguf", "x", "--chat", "--template", "absent.jinja"],
        ["run", "absent.gguf", "x", "--json-schema", "absent.json"],
        ["run", "absent.gguf", "x", "--chat", "--chat-template-kwargs", "{"],
        ["chat", "absent.gguf", "--chat-template-kwargs", "[1]"],
        ["serve", "absent.gguf", "--chat-template-kwargs", "x"],
        ["chat", "absent.gguf", "--top-p", "2"],
        ["serve", "absent.gguf", "--threads", "0"],
        ["serve", "absent.gguf", "--port", "99999"],
        ["run", "absent.gguf", "x", "--context", "1000000000000"],
        ["run", "absent.gguf", "caf\udce9"],
        ["bench", "absent.gguf", "--plot", "no-such-folder/x.png"],
        ["bench", "absent.gguf", "--plot", "x.docx"],
        ["bench", "absent.gguf", "--suite", "humaneval", "--csv", "no-such-folder/x.csv"],
    ],
)
def test_values_are_checked_before_the_model(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--offline"]) == 1
    assert "absent.gguf" not in capsys.readouterr().err


def test_flags_of_the_template() -> None:
    args = build_parser(("chat",)).parse_args(
        [
            "chat",
            "m",
            "--reasoning-effort",
            "LOW",
            "--chat-template-kwargs",
            '{"preserve_thinking": true}',
            "--no-thinking",
        ]
    )
    assert keywords_of_chat(args) == {
        "enable_thinking": False,
        "reasoning_effort": "low",
        "chat_template_kwargs": {"preserve_thinking": True},
    }
    assert options.EFFORTS == profiles.EFFORTS  # a copy, because the module of the profiles is slow to import


# sizes


@pytest.mark.parametrize(
    "text, size",
    [
        ("0", 0),
        ("4096", 4096),
        ("2GB", 2 * 10**9),
        ("1.5 gb", 1.5 * 10**9),
        ("2GiB", 2 << 30),
        ("512MiB", 512 << 20),
        ("16G", 16 * 10**9),
        ("16gi", 16 << 30),
        ("10 kB", 10_000),
        ("7b", 7),
        ("1.5GiB", 3 << 29),
        (4096, 4096),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "GB", "2XB", "-1", "1e30", "2GBB", "iB", "5i", "nan", "1 2", "24 gibibytes", "0.1", -1]
)
def test_no_sizes(text: str | int) -> None:
    with pytest.raises(InvalidRequestError, match="a size is a number of bytes, or has a unit"):
        parse_size(text)


def test_shown_sizes_are_binary() -> None:
    assert [show_size(n) for n in (0, 999, 1 << 20, 12 << 30, 5 << 40)] == ["0 B", "999 B", "1 MiB", "12 GiB", "5 TiB"]


# completion


def test_completion_knows_commands_flags_and_models(capsys: pytest.CaptureFixture[str]) -> None:
    facts = json.loads(out_of(capsys, "completion", "bash", "--json"))
    assert facts["flags"].keys() == COMMANDS.keys() and "--prefix-cache" in facts["flags"]["serve"]
    fish = completion.fish(facts["flags"], facts["models"])
    assert "complete -c lucebox -n '__fish_seen_subcommand_from serve' -l prefix-cache\n" in fish
    script = completion.bash(facts["flags"], facts["models"])

    def completed(*words: str) -> list[str]:
        typed = " ".join(f"'{word}'" for word in ("lucebox", *words))
        asked = f'{script}\nCOMP_WORDS=({typed}); COMP_CWORD={len(words)}; _lucebox; echo "${{COMPREPLY[@]}}"'
        return subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True).stdout.split()

    assert completed("se") == ["serve", "selftest"]
    assert completed("run", "tiny-h") == ["tiny-hybrid"]
    assert completed("serve", "x", "--prefix-cache-d") == ["--prefix-cache-dir", "--prefix-cache-disk"]
    assert completed("help", "be") == ["bench"]


# pull and rm


def test_pull_and_rm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    packaged = catalog.cached()["tiny-hybrid"]
    monkeypatch.setenv("LUCEBOX_CACHE", str(tmp_path))
    file = tmp_path / "models" / packaged.name
    file.parent.mkdir()
    shutil.copy(packaged, file)
    pulled = json.loads(out_of(capsys, "pull", "Tiny-Hybrid", "--offline", "--json"))
    assert (pulled["path"], pulled["bytes"]) == (str(file), packaged.stat().st_size)
    assert json.loads(out_of(capsys, "rm", "tiny-hybrid", "--json"))["freed_bytes"] == packaged.stat().st_size
    assert not file.exists()
    for words, reason in (
        (["rm", "smollm2-135m"], "not on this machine"),
        (["rm", "org/name:Q8_0"], "name the whole repository"),
        (["pull", str(tmp_path)], "without a GGUF model"),
    ):
        assert main(words) == 1
        assert reason in capsys.readouterr().err


def test_clean_deletes_what_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LUCEBOX_CACHE", str(tmp_path))
    kept = ["chat_history", "models/a.gguf", "models/partial-new/a.whl"]
    gone = ["step_costs/a.json", "verified/a", "models/partial-old/a.whl"]
    for name in kept + gone:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("12345")
    os.utime(tmp_path / "models/partial-old", (0, 0))
    report = json.loads(out_of(capsys, "clean", "--json"))
    assert report["freed_bytes"] == 15
    assert {Path(path).name for path in report["deleted"]} == {"step_costs", "verified", "partial-old"}
    assert [(tmp_path / name).exists() for name in kept + gone] == [True] * 3 + [False] * 3
    assert out_of(capsys, "clean") == "nothing to delete\n"


def test_rm_keeps_what_a_package_owns(capsys: pytest.CaptureFixture[str]) -> None:
    path = catalog.cached()["tiny-hybrid"]
    assert main(["rm", "tiny-hybrid"]) == 1
    assert "uninstall the package" in capsys.readouterr().err and path.is_file()


# streams


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_narrow_terminal_gets_a_line_per_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [["a-long-name-of-a-model", "1,234.5", "some words about it"], ["b", "2", ""]]
    shown = {}
    for width in ("30", "80"):
        monkeypatch.setenv("COLUMNS", width)
        monkeypatch.setattr(sys, "stdout", Terminal())
        console.print_table(["name", ("tok/s", "right"), "about"], rows)
        shown[width] = sys.stdout.getvalue()  # type: ignore[attr-defined]
    assert (
        shown["30"] == "name: a-long-name-of-a-model\ntok/s: 1,234.5\nabout: some words about it\n\nname: b\ntok/s: 2\n"
    )
    assert shown["80"].splitlines()[1].split() == ["a-long-name-of-a-model", "1,234.5", "some", "words", "about", "it"]


class Stdin:
    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)

    def isatty(self) -> bool:
        return False


def test_stdin_must_be_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin("\ufeffGrüße\r\n".encode()))
    assert read_prompt("-") == "Grüße"
    for data in (b"caf\xe9", b"\x00\xff"):
        monkeypatch.setattr(sys, "stdin", Stdin(data))
        with pytest.raises(InvalidRequestError, match="stdin is not UTF-8 text"):
            read_prompt(None)
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InvalidRequestError, match="stdin is closed"):
        read_prompt(None)


def test_a_closed_stdout_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["models"]) == 1
    monkeypatch.undo()
    assert capsys.readouterr().err == "lucebox: error: stdout is closed; redirect it to a file or /dev/null\n"


def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-m", "lucebox", "help"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "lucebox: error: stdout: No space left on device\n")


def test_ctrl_c_while_modules_load_is_one_line() -> None:
    code = """
import os, signal, time
from lucebox.cli.interrupts import importing
with importing():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(10)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_a_message_may_have_several_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LUCEBOX_CACHE", str(tmp_path))
    typed = iter(["one \\", "two", '"""three', "  four", 'five"""', "pasted\nlines", "/help"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    with LineReader(is_interactive=True) as read:
        assert [read() for _ in range(4)] == [
            Line("one \ntwo"),
            Line("three\n  four\nfive", is_quoted=True),
            Line("pasted\nlines"),
            Line("/help"),
        ]
    assert (tmp_path / "chat_history").stat().st_mode & 0o077 == 0


def test_continued_lines_keep_their_indentation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LUCEBOX_CACHE", str(tmp_path))
    typed = iter(["if a:\\", "    if b:\\", "\tc  ", "  def f():\\", "    pass", "  /help "])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    with LineReader(is_interactive=True) as read:
        assert [read() for _ in range(3)] == [
            Line("if a:\n    if b:\n\tc"),
            Line("  def f():\n    pass"),
            Line("/help"),
        ]


@pytest.mark.parametrize(
    "text, is_command",
    [
        ("/help", True),
        ("/SET top_k=3", True),
        ("/set", True),
        ("/exit", True),
        ("/system\tBe brief.", True),
        ("/srv/data/a.py explain this", False),
        ("/helpful words", False),
        ("/usr/bin", False),
        ("/", False),
        ("// a comment\nint a;", False),
        ("/* a comment */", False),
        ("/nonsense", False),
        ("/tmp", False),
        ("help", False),
        ("", False),
    ],
)
def test_only_known_commands_are_commands(text: str, is_command: bool) -> None:
    chat = Chat.__new__(Chat)
    chat.commands = dict.fromkeys(("help", "set", "system", "save", "stats"), print)
    assert chat.is_command(Line(text)) == is_command
    assert not chat.is_command(Line(text, is_quoted=True))


def test_a_word_that_is_nearly_a_command_is_refused() -> None:
    chat = Chat.__new__(Chat)
    chat.commands = {"help": print}
    with pytest.raises(InvalidRequestError, match="no command /hlep; did you mean help"):
        chat.is_command(Line("/hlep"))


@pytest.mark.parametrize("module", ["lucebox.cli", "argparse", "lucebox.errors"])
def test_ctrl_c_before_the_command_is_one_line(module: str) -> None:
    """While the program's own first modules load."""
    code = f"""
import os, runpy, signal, sys, time
class Interrupter:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
sys.meta_path.insert(0, Interrupter())
sys.argv = ["lucebox", "--version"]
runpy.run_module("lucebox", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


# launch


@pytest.mark.parametrize("client", CLIENTS)
def test_the_printed_script_does_what_launch_does(
    client: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setup = CLIENTS[client].setup(Endpoint("http://127.0.0.1:8000", 'it\'s "odd" $HOME', 40000, "a key"))
    home = tmp_path / "my home"
    report = ("-c", "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:]]))")
    reporting = replace(setup, arguments=(*report, *setup.arguments))
    launch.show(replace(CLIENTS[client], program="python3"), reporting, ["-x", "two words"], home, as_json=False)
    script = capsys.readouterr().out
    done = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True)
    environment, arguments = json.loads(done.stdout)
    assert arguments == [*(launch.in_home(argument, home) for argument in setup.arguments), "-x", "two words"]
    want = {name: launch.in_home(value, home) for name, value in setup.variables.items()}
    assert {name: environment[name] for name in want} == want
    assert {name: (home / name).read_text() for name in setup.files} == dict(setup.files)
