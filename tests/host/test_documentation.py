"""The blocks of README.md and docs: each says what it needs, those that need only the embedded model are run, and every
`lucebox` command among them has flags that exist.

The word after the language says what a block needs: tiny (the embedded model), llguidance, network, setup (a machine
or an environment to change).
"""

from __future__ import annotations

import argparse
import io
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from lucebox.cli import COMMANDS, build_parser, main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w+) ?([^\n]*)\n(.*?)^```$", re.M | re.S)
RUN = {"tiny", "llguidance"}
NEEDS = RUN | {"network", "setup"}


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Language, needs and text of every block that a reader can run."""
    found = [match.groups() for match in FENCE.finditer(page.read_text(encoding="utf-8"))]
    return [(language, mark, text) for language, mark, text in found if language in ("python", "console", "sh")]


def commands(text: str) -> Iterator[list[str]]:
    """The words of each `lucebox` command of a console block, or of an indented one, whose lines may end with a note
    after two spaces."""
    for line in text.splitlines():
        match = re.match(r"(?:\$ |    )(?:\.venv/bin/)?lucebox (.*?)(?:  .*)?$", line)
        if match:
            yield shlex.split(match[1], comments=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_says_what_it_needs(page: Path) -> None:
    for language, mark, text in blocks(page):
        assert mark.removeprefix("needs=") in NEEDS, f"{page.name}: ```{language} {mark}\n{text}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_have_flags_that_exist(page: Path) -> None:
    for words in commands(page.read_text(encoding="utf-8")):
        words = words[: words.index("--")] if "--" in words else words
        if words[-1] == "&":
            words.pop()
        if words[0] == "help":
            continue
        assert words[0] in COMMANDS, words
        flags = [word for word in words[1:] if word.startswith("-") and word != "-"]
        parser = build_parser((words[0],))
        sub = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
        known = sub.choices[words[0]]._option_string_actions
        assert [flag for flag in flags if flag not in known] == [], words


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "needs=tiny" in page.read_text()], ids=lambda page: page.name
)
def test_blocks_run_as_written(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python blocks of a page one after the other in one namespace."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {}
    for language, mark, text in blocks(page):
        if mark.removeprefix("needs=") not in RUN:
            continue
        if language == "python":
            with redirect_stdout(io.StringIO()):
                exec(compile(text, page.name, "exec"), namespace)
            continue
        for words in commands(text):
            assert main(words) == 0, words
