"""The workflows call scripts that exist with options that they have, and the linters find what is planted."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import release_plan
import test as test_stages
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def jobs(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text())["jobs"]
    return found


def commands() -> list[str]:
    """Every line that a step runs."""
    steps = [step for file in WORKFLOWS for job in jobs(file).values() for step in job.get("steps", [])]
    return [line for step in steps for line in step.get("run", "").splitlines()]


def test_there_are_workflows() -> None:
    assert [file.name for file in WORKFLOWS] == ["index.yml", "release.yml", "tests.yml"]


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


def test_outputs_that_jobs_ask_for_are_those_of_the_plan() -> None:
    content = (ROOT / ".github/workflows/release.yml").read_text()
    command = [sys.executable, ROOT / "ci/release_plan.py", "--outputs"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    written = {line.split("=")[0] for line in shown.splitlines()}
    assert set(re.findall(r"steps\.plan\.outputs\.(\w+)", content)) == written
    assert set(re.findall(r"needs\.plan\.outputs\.(\w+)", content)) == written


READ = {"contents": "read"}
PUBLISH = {"id-token": "write"}
ATTEST = {"attestations": "write", **PUBLISH}
# Every job that may do more than read the sources, and what that is.
PERMISSIONS = {
    ("release.yml", "attest"): ATTEST,
    ("release.yml", "attest-wheel"): ATTEST,
    ("release.yml", "pypi-packs"): PUBLISH,
    ("release.yml", "pypi-tiny"): PUBLISH,
    ("release.yml", "pypi-host"): PUBLISH,
    ("release.yml", "github"): {"contents": "write"},
    ("release.yml", "index"): {"attestations": "read", "pages": "write", "id-token": "write", **READ},
    ("index.yml", "pages"): {"attestations": "read", "pages": "read", **READ},
    ("index.yml", "deploy"): {"pages": "write", "id-token": "write"},
}


def test_permissions() -> None:
    """A token that names the workflow to others only where something is published or attested."""
    for file in WORKFLOWS:
        assert yaml.safe_load(file.read_text())["permissions"] == {}
        for name, job in jobs(file).items():
            assert job["permissions"] == PERMISSIONS.get((file.name, name), READ), f"{file.name}: {name}"
    present = {(file.name, name) for file in WORKFLOWS for name in jobs(file)}
    assert PERMISSIONS.keys() <= present


def test_a_job_that_publishes_runs_no_code_of_the_tree() -> None:
    """It uploads what a job without rights has built: neither a script of the tree nor a build can reach its token."""
    for file, name in PERMISSIONS:
        job = jobs(ROOT / ".github/workflows" / file)[name]
        if "write" not in job["permissions"].values() or "uses" in job:
            continue
        used = [step["uses"].split("@")[0] for step in job["steps"] if "uses" in step]
        assert "actions/checkout" not in used and "actions/setup-python" not in used
        assert all("ci/" not in step.get("run", "") for step in job["steps"])


def test_pins_and_limits() -> None:
    for file in WORKFLOWS:
        for job in jobs(file).values():
            if "uses" in job:
                assert re.fullmatch(r"\$/\.github/workflows/(tests|index)\.yml", job["uses"])
                continue
            assert job["timeout-minutes"] <= 60
            for step in job["steps"]:
                action = step.get("uses", f"actions/x@{'0' * 40}")
                assert re.fullmatch(r"(actions/[\w-]+|pypa/gh-action-pypi-publish)@[0-9a-f]{40}", action)


def test_uploads_follow_the_plan() -> None:
    """Packs, the demo's model, the host; each project through its own environment, which its publisher names."""
    found = jobs(ROOT / ".github/workflows/release.yml")
    assert found["attest"]["needs"] == ["verify", "tests"]
    assert found["pypi-packs"]["needs"] == ["plan", "attest"]
    assert (found["pypi-tiny"]["needs"], found["pypi-host"]["needs"]) == ("pypi-packs", "pypi-tiny")
    assert found["attest-wheel"]["needs"] == ["plan", "attest"] and found["index"]["needs"] == "github"
    assert found["github"]["needs"] == ["plan", "attest-wheel", "pypi-host"]
    folders = {}
    for name in ("pypi-packs", "pypi-tiny", "pypi-host"):
        (upload,) = (step for step in found[name]["steps"] if step["uses"].startswith("pypa/"))
        folders[found[name]["environment"]] = upload["with"]["packages-dir"]
    assert folders == {
        f"pypi-{name}": f"release/pypi/{name}" for name in ("${{ matrix.project }}", "lucebox-tiny", "lucebox")
    }
    assert {project.environment for project in release_plan.plan().projects} >= {"pypi-lucebox-tiny", "pypi-lucebox"}


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_a_shell_can_read_every_script(file: Path) -> None:
    for job in jobs(file).values():
        for step in job.get("steps", []):
            done = subprocess.run(["bash", "-n"], input=step.get("run", ""), capture_output=True, text=True)
            assert done.returncode == 0, done.stderr


# The first release of each that runs on Node 24: runners have dropped Node 20.
NODE_24 = {
    "attest-build-provenance": 4,
    "cache": 5,
    "checkout": 5,
    "deploy-pages": 5,
    "download-artifact": 7,
    "setup-python": 6,
    "upload-artifact": 6,
    "upload-pages-artifact": 5,
}


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
    done = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert done.returncode != 0 and words in done.stdout + done.stderr
