"""check_reproducible.py names the members that differ, and its second tree shares no build with the first."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import build_packs
import check_reproducible
from project import ROOT, tracked_files


def wheel(folder: Path, members: dict[str, str]) -> Path:
    folder.mkdir()
    with zipfile.ZipFile(folder / "a-1-py3-none-any.whl", "w") as archive:
        for name, text in members.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return folder / "a-1-py3-none-any.whl"


def sdist(folder: Path, content: Path, mtime: int) -> Path:
    folder.mkdir()
    with tarfile.open(folder / "a-1.tar.gz", "w:gz") as archive:
        entry = archive.gettarinfo(content, "a-1/file")
        entry.mtime = mtime
        with content.open("rb") as file:
            archive.addfile(entry, file)
    return folder / "a-1.tar.gz"


def test_members_that_differ_are_named(tmp_path: Path) -> None:
    members = {"a/code": "1", "a/manifest.json": "{}"}
    first = wheel(tmp_path / "1", members)
    assert check_reproducible.difference(first, wheel(tmp_path / "2", members)) == ""
    assert check_reproducible.difference(first, wheel(tmp_path / "3", {**members, "a/code": "2"})) == "a/code"
    assert check_reproducible.difference(first, wheel(tmp_path / "4", {"a/code": "1"})) == "a/manifest.json"
    content = tmp_path / "content"
    content.write_text("1")
    old, new = (sdist(tmp_path / f"t{mtime}", content, mtime) for mtime in (1, 2))
    assert check_reproducible.difference(old, new) == "the archive itself"


def test_the_second_tree_has_the_same_files_and_commit(tmp_path: Path) -> None:
    elsewhere = check_reproducible.Elsewhere(tmp_path)
    for file in tracked_files("ci", "targets"):
        assert (elsewhere.root / file.relative_to(ROOT)).read_bytes() == file.read_bytes()
    assert not list((elsewhere.root / "build").glob("*.whl"))
    program = "import build_packs; print(build_packs.commit(), build_packs.OBJECTS)"
    command = [sys.executable, "-c", program]
    env = {**elsewhere.environment, "PYTHONPATH": str(elsewhere.root / "ci"), "PATH": "/usr/bin:/bin"}
    said = subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout
    assert said == f"{build_packs.commit()} {tmp_path}/cache/lucebox/objects\n"


def test_an_unknown_name_is_refused() -> None:
    command = [sys.executable, ROOT / "ci/check_reproducible.py", "sm_1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "sm_1: there are host, host-release, " in done.stderr
