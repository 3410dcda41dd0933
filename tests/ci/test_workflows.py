"""The workflows call scripts that exist with options that they have, and the linters find what is planted."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import test as test_stages
import yaml

import targets

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def jobs(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text())["jobs"]
    return found


def commands() -> list[str]:
    """Every line that a step runs."""
    steps = [step for file in WORKFLOWS for job in jobs(file).values() for step in job["steps"]]
    return [line for step in steps for line in step.get("run", "").splitlines()]


def test_there_are_workflows() -> None:
    assert [file.name for file in WORKFLOWS] == ["tests.yml", "wheels.yml"]


def test_scripts_know_the_options() -> None:
    calls = [found for line in commands() for found in re.findall(r"(ci/\w+\.py)((?: [^)|>]*)?)", line)]
    assert len(calls) >= 6
    for script, words in calls:
        command = [sys.executable, ROOT / script, "--help"]
        shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for option in re.findall(r"(?<!\S)--[\w-]+", words):
            assert option in shown, f"{script} has no {option}"


def test_make_targets_exist() -> None:
    rules = set(re.findall(r"^([\w./]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = {found for line in commands() for found in re.findall(r"\bmake ([\w./]+)", line)}
    assert asked and asked <= rules


def test_every_stage_beyond_make_test_has_a_job() -> None:
    content = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())
    assert content["jobs"]["more"]["strategy"]["matrix"]["stage"] == list(test_stages.MORE)


def test_matrix_is_every_target() -> None:
    """The list that the first job hands to the matrix is one JSON list on one line."""
    (line,) = (line for line in commands() if "GITHUB_OUTPUT" in line)
    script = re.search(r"ci/targets\.py --\w+", line)
    assert script
    command = [sys.executable, *script[0].split()]
    shown = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    assert json.loads(shown) == targets.names() and shown.count("\n") == 1


def test_permissions_and_pins() -> None:
    for file in WORKFLOWS:
        content = yaml.safe_load(file.read_text())
        assert content["permissions"] == {}
        for job in content["jobs"].values():
            assert job["permissions"] == {"contents": "read"}
            assert job["timeout-minutes"] <= 60
            for step in job["steps"]:
                assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step.get("uses", f"actions/x@{'0' * 40}"))


# The first release of each that runs on Node 24: runners have dropped Node 20.
NODE_24 = {"checkout": 5, "setup-python": 6, "upload-artifact": 6, "download-artifact": 7, "cache": 5}


def test_actions_run_on_a_node_that_runners_have() -> None:
    found = [
        (name, int(major))
        for file in WORKFLOWS
        for name, major in re.findall(r"uses: actions/([\w-]+)@[0-9a-f]{40} # v(\d+)\.", file.read_text())
    ]
    assert found and all(major >= NODE_24[name] for name, major in found)


WRONG = """
name: wrong
on: push
permissions: {}
jobs:
  job:
    %s: ubuntu-24.04
    steps:
      - run: echo ${{ github.event.issue.title }}
"""


@pytest.mark.parametrize(
    ("tool", "key", "words"),
    [
        (["check-jsonschema", "--builtin-schema", "vendor.github-workflows"], "run-on", "run-on"),
        (["zizmor", "--offline", "--pedantic", "-q", "--format=plain"], "runs-on", "template-injection"),
    ],
    ids=["schema", "safety"],
)
def test_linters_find_what_is_planted(tmp_path: Path, tool: list[str], key: str, words: str) -> None:
    program = Path(sys.executable).with_name(tool[0])
    if not program.exists() and shutil.which(tool[0]) is None:
        pytest.skip(f"{tool[0]} is a tool of .venv, where the gates run")
    file = tmp_path / ".github" / "workflows" / "wrong.yml"
    file.parent.mkdir(parents=True)
    file.write_text(WRONG % key)
    command = [str(program) if program.exists() else tool[0], *tool[1:], str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0 and words in done.stdout + done.stderr
