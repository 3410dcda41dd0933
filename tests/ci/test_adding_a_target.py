"""docs/adding-a-target.md, followed to the letter in a tree with one small kernel."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import test_pack_build
from lucebox import packs
from lucebox.packs.drivers import Gpu
from pack_data import on_path
from project import ROOT

import targets

PAGE = (ROOT / "docs/adding-a-target.md").read_text()
NAME = "gfx1152"


def blocks(page: str) -> list[str]:
    """The indented blocks of a page."""
    found = re.findall(r"(?<=\n\n)((?:    .+\n|\n(?=    ))+)", page)
    return [re.sub("^    ", "", block, flags=re.MULTILINE) for block in found]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with one small kernel, and the new target as the page has it."""
    folder = tmp_path_factory.mktemp("tree")
    test_pack_build.tree(folder, "gfx1151", test_pack_build.GOOD)
    shutil.copytree(ROOT / "targets", folder / "targets", dirs_exist_ok=True)
    test_pack_build.drop_exceptions(folder, "gfx1151")
    for file in ("LICENSE", "python/lucebox/packs/targets.json", "docs/targets.md", "tests/ci/test_targets.py"):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, folder / file)
    file = folder / f"targets/{NAME}/target.toml"
    file.parent.mkdir()
    file.write_text(next(block for block in blocks(PAGE) if "[capabilities]" in block))
    return folder


def run(tree: Path, command: str) -> subprocess.CompletedProcess[str]:
    """A command of the page, in the tree."""
    assert command in PAGE
    words = command.split("#")[0].split()
    words[0:1] = {"python": [sys.executable], "pytest": [sys.executable, "-m", "pytest"]}[words[0]]
    return subprocess.run(words, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)


def test_the_schema_takes_the_example(tree: Path) -> None:
    target = targets.load(NAME, tree)
    assert (target.vendor, target.boards[0].memory_gb) == ("amd", None)


def test_a_wrong_example_gives_the_message_of_the_page(tree: Path) -> None:
    file = tree / f"targets/{NAME}/target.toml"
    good = file.read_text()
    file.write_text(good.replace("wmma_gfx11", "wgmma"))
    done = run(tree, f"python ci/targets.py {NAME}")
    file.write_text(good)
    assert done.returncode == 1 and done.stdout in PAGE
    assert run(tree, f"python ci/targets.py {NAME}").returncode == 0


@pytest.mark.slow  # 4 s
def test_generated_files(tree: Path) -> None:
    done = run(tree, "python ci/generate_targets.py")
    assert done.returncode == 0, done.stdout
    for file in ("CMakePresets.json", "pyproject.toml", "python/lucebox/packs/targets.json", "docs/targets.md"):
        assert NAME in (tree / file).read_text()
    done = run(tree, "pytest tests/ci/test_targets.py")
    assert done.returncode == 0, done.stdout


@pytest.mark.slow  # 4 s
def test_the_pack_builds_and_a_host_that_does_not_know_it_runs_it(tree: Path, tmp_path: Path) -> None:
    python = test_pack_build.interpreter("gfx1151")
    assert run(tree, "python ci/generate_targets.py").returncode == 0
    assert f"pip wheel --no-deps ./targets/{NAME}" in PAGE
    assert f"cmake --workflow --preset {NAME} " in PAGE
    done = test_pack_build.command(["cmake", "--workflow", "--preset", NAME], tree, python)
    assert done.returncode == 0, done.stdout
    assert f" build/{NAME}/wheel/lucebox_{NAME}-" in done.stdout.rstrip().splitlines()[-1]
    pip = [python, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, f"./targets/{NAME}"]
    done = test_pack_build.command(pip, tree, python)
    assert done.returncode == 0, done.stdout
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    device = Gpu("hip", 0, "Radeon 860M", NAME, "HIP 7.1", "7.1", total_bytes=1, free_bytes=1)
    with on_path(tmp_path / "site"):
        choice = packs.choose(device, packs.find())
        assert choice.reason == f"pack {NAME} is made for {NAME}"
        assert choice.pack.load(choice.code).keys() == {"probe.hsaco"}
    assert choice.pack.manifest.boards[0].name == "Ryzen AI 7 350 (Radeon 860M)"
