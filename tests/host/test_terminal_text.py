"""Text of others is escaped on a terminal, and written as it is into pipes."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest
from lucebox.cli import console, main
from lucebox.cli.terminal_text import escaped
from lucebox.results import Chunk

CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x07"
HOSTILE = f"a{CLIPBOARD}b\x9b2Jc\u202ed\x7f\r\x08"
SHOWN = r"a\x1b]52;c;cm0gLXJmIH4=\x07b\u009b2Jc\u202ed\x7f\x0d\x08"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminals(monkeypatch: pytest.MonkeyPatch) -> tuple[Terminal, Terminal]:
    """Terminals as stdout and stderr. Set in the test, because pytest's capture sets its own after the fixtures."""
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    return out, err


def test_escaped() -> None:
    assert escaped(HOSTILE) == SHOWN
    assert escaped("x\ny\tz", keep="") == r"x\x0ay\x09z"
    ordinary = "Größe\n大きさ\t👩‍👩‍👧 نص العربية\u00a0x"
    assert escaped(ordinary) == ordinary
    assert escaped("\u2066\u2028\U000e0001") == r"\u2066\u2028\U000e0001"


def test_everything_that_is_written_to_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = terminals(monkeypatch)
    console.write(HOSTILE)
    assert out.getvalue() == SHOWN
    console.note(HOSTILE)
    console.error(f"{HOSTILE}: no such file")
    assert err.getvalue().splitlines()[0] == SHOWN and CLIPBOARD not in err.getvalue()
    console.write_chunk(Chunk(HOSTILE, (1,), reasoning=HOSTILE), False)
    console.print_table(["name"], [[HOSTILE]], title="t")
    console.print_json({"text": HOSTILE})
    for written in (out.getvalue(), err.getvalue()):
        assert "\x1b]" not in written and "\x9b" not in written and "\u202e" not in written


def test_a_pipe_gets_the_text_itself(capsys: pytest.CaptureFixture[str]) -> None:
    console.write(HOSTILE)
    console.note(HOSTILE)
    captured = capsys.readouterr()
    assert captured.out == HOSTILE and captured.err == HOSTILE + "\n"


def test_names_of_files_in_errors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out, err = terminals(monkeypatch)
    for words in (["run", f"absent{CLIPBOARD}.gguf", "x"], ["inspect", str(tmp_path / f"x{CLIPBOARD}")]):
        assert main(words) == 1
    assert CLIPBOARD not in err.getvalue() + out.getvalue() and r"\x1b]52" in err.getvalue()


@pytest.mark.parametrize(
    "words",
    [
        ("run", "tiny-hybrid", "a", "--\x1b]0;t\x07"),
        ("run", "tiny-hybrid", "a", "-n", "\x1b[2J"),
        ("run", "tiny-hybrid", "a", "--quiet=\x1b[2J"),
        ("completion", "\x1b[2J"),
        ("\x1b[2J",),
    ],
)
def test_errors_of_usage(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    _, err = terminals(monkeypatch)
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "x1b" in err.getvalue() and "\x1b" not in err.getvalue()
