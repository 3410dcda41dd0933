"""The blocks of README.md and of every other page: each says what it needs, those that need only the embedded model are
run, and the others name commands, flags, files, presets and targets that exist.

The word after the language says what a block needs: tiny (the embedded model), llguidance, network, gpu (a GPU and its
pack), model (a model of the reader's), setup (a machine or an environment to change).
"""

from __future__ import annotations

import argparse
import io
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from lucebox.cli import COMMANDS, build_parser, main

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("docs", "benchmarks", "models", "kernels", "python", "src")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(p for f in FOLDERS for p in (ROOT / f).rglob("*.md"))]
FENCE = re.compile(r"^```(\w+) ?([^\n]*)\n(.*?)^```$", re.M | re.S)
INDENTED = re.compile(r"^\n    (\S.*)", re.M)  # the first line of a block
PROGRAMS = r"lucebox|python3?|pip|uv|cmake|ninja|make|git|pytest|source|curl|ci/\S+|(?:\./)?build/\S+|\.venv/\S+"
COMMAND = re.compile(rf"(?:\$ )?(?:{PROGRAMS}) ")
RUN = {"tiny", "llguidance"}
NEEDS = RUN | {"network", "gpu", "model", "setup"}
TO_BE_ADDED = {"gfx1152", "gfx1151_laptop", "gfx1151_quiet"}  # targets that a page tells how to add

WITH_BLOCKS = [page for page in PAGES if FENCE.search(page.read_text(encoding="utf-8"))]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Language, needs and text of every block that a reader can run."""
    found = [match.groups() for match in FENCE.finditer(page.read_text(encoding="utf-8"))]
    return [(language, mark, text) for language, mark, text in found if language in ("python", "console", "sh")]


def lines(text: str) -> Iterator[list[str]]:
    """The words of each command of a console block."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            yield shlex.split(line[2:], comments=True)


def commands(text: str) -> Iterator[list[str]]:
    """The words of each `lucebox` command, without the program."""
    for program, *words in lines(text):
        if program in ("lucebox", ".venv/bin/lucebox"):
            yield words


def test_every_block_says_what_it_needs() -> None:
    for page in PAGES:
        for language, mark, text in blocks(page):
            assert mark.removeprefix("needs=") in NEEDS, f"{name(page)}: ```{language} {mark}\n{text}"
        outside = FENCE.sub("", page.read_text(encoding="utf-8"))
        found = [line for line in INDENTED.findall(outside) if COMMAND.match(line)]
        assert found == [], f"{name(page)}: commands outside a fence, which says what they need"


PRESETS = {
    preset["name"]
    for kind in ("configurePresets", "workflowPresets")
    for preset in json.loads((ROOT / "CMakePresets.json").read_text())[kind]
}
GOALS = set(re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text(), re.M))


def unknown_names(words: list[str]) -> list[str]:
    """Words that name a preset, a goal of make, a file of this tree or a flag of its scripts that is not there."""
    unknown = [
        word
        for word in words
        if word.startswith(("ci/", "tests/", "benchmarks/", "./targets/"))
        and not (ROOT / word).exists()
        and Path(word).name not in TO_BE_ADDED
    ]
    if words[0] == "make":
        unknown += [word for word in words[1:] if word not in GOALS]
    if words[0] == "cmake" and "--preset" in words:
        unknown += [word for word in words[words.index("--preset") + 1 :][:1] if word not in PRESETS | TO_BE_ADDED]
    script = next((ROOT / word for word in words[:2] if word.startswith(("ci/", "benchmarks/"))), None)
    if script is not None and script.is_file():
        twin = script.with_suffix(".py")  # of a shell script that calls it
        source = (twin if twin.is_file() else script).read_text(encoding="utf-8")
        unknown += [word for word in words if word.startswith("--") and f'"{word}"' not in source]
    return unknown


def test_commands_name_what_exists() -> None:
    found = 0
    for page in WITH_BLOCKS:
        for words in lines("\n".join(text for _, _, text in blocks(page))):
            found += 1
            assert unknown_names(words) == [], f"{name(page)}: {shlex.join(words)}"
    assert found > 80
    assert unknown_names(["make", "tset"]) == ["tset"]
    assert unknown_names(["cmake", "--workflow", "--preset", "sm_91"]) == ["sm_91"]
    assert unknown_names(["python", "ci/release_plan.py", "--tga", "v1"]) == ["--tga"]
    assert unknown_names(["pip", "wheel", "./targets/sm_85"]) == ["./targets/sm_85"]


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=name)
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


@pytest.mark.parametrize("page", [page for page in PAGES if "needs=tiny" in page.read_text(encoding="utf-8")], ids=name)
def test_blocks_run_as_written(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the Python blocks of a page in order, in one namespace."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")  # some commands read images there
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
