"""Builds files of a release a second time, in a folder with another name, and compares the bytes.

check_reproducible.py                     this interpreter's host wheel, the packs of PACKS, sdists
check_reproducible.py host sm_86 sources  only these
check_reproducible.py --release           everything published: the host wheels of ci/release_host.py, every pack, ...

The first host wheel comes from the build folder, the second from pip's isolated environment. The first packs may come
from the store of compiled objects, the second ones are compiled. A file that passed before is not built again.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import build_packs
from project import BUILD, ROOT, build_wheel, run, sha256, tools_environment, tracked_files

import targets

PACKS = ("sm_75", "gfx1151", "sim")  # one of each vendor: the NVIDIA pack that takes least time
PASSED = BUILD / "reproducible"
PYTHON = Path(sys.executable)


class Elsewhere:
    """A copy of the tree in a folder with another name, whose builds share only the installed compilers."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a-folder-with-another-name"
        for file in tracked_files():
            target = self.root / file.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)
        (self.root / "build").mkdir()
        (self.root / "build" / "toolchain").symlink_to(build_packs.TOOLCHAIN)
        self.environment = {"CCACHE_DISABLE": "1", "XDG_CACHE_HOME": str(folder / "cache")}
        git = ("git", "-C", str(ROOT), "rev-parse", "--absolute-git-dir")
        found = subprocess.run(git, capture_output=True, text=True, check=False)
        if found.returncode == 0:  # a pack names its commit
            repository = {"GIT_DIR": found.stdout.strip(), "GIT_WORK_TREE": str(self.root), "GIT_OPTIONAL_LOCKS": "0"}
            self.environment |= repository

    def script(self, name: str, *words: str | Path) -> None:
        run(PYTHON, self.root / "ci" / name, *words, cwd=self.root, env=tools_environment(PYTHON, **self.environment))

    def host(self) -> list[Path]:
        return [build_wheel(source=self.root, isolated=True)]

    def host_release(self) -> list[Path]:
        self.script("release_host.py", "--no-try", "--out", self.root / "host")
        return sorted((self.root / "host").iterdir())

    def pack(self, name: str) -> list[Path]:
        self.script("build_packs.py", name)
        return list((self.root / "build" / "packs").glob(f"lucebox_{targets.load(name).slug}-*.whl"))

    def sources(self) -> list[Path]:
        self.script("build_sources.py", "--out", self.root / "sources")
        return sorted((self.root / "sources").iterdir())


class Here:
    """This tree, whose builds may use its caches."""

    def host(self) -> list[Path]:
        return [build_wheel()]

    def host_release(self) -> list[Path]:
        out = PASSED / "host"
        run(PYTHON, ROOT / "ci" / "release_host.py", "--no-try", "--out", out)
        return sorted(out.iterdir())

    def pack(self, name: str) -> list[Path]:
        run(PYTHON, ROOT / "ci" / "build_packs.py", name)
        return list(build_packs.PACKS.glob(f"lucebox_{targets.load(name).slug}-*.whl"))

    def sources(self) -> list[Path]:
        out = PASSED / "sources"
        shutil.rmtree(out, ignore_errors=True)
        run(PYTHON, ROOT / "ci" / "build_sources.py", "--out", out)
        return sorted(out.iterdir())


def built(place: Here | Elsewhere, what: str) -> list[Path]:
    """Builds what an argument of this script names, and returns the files."""
    makers = {"host": place.host, "host-release": place.host_release, "sources": place.sources}
    return makers[what]() if what in makers else place.pack(what)


def contents(archive: Path) -> dict[str, bytes]:
    """Name to bytes of each file in a wheel or sdist; of an sdist without its folders."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return {name: wheel.read(name) for name in wheel.namelist()}
    with tarfile.open(archive) as sdist:
        return {member.name: file.read() for member in sdist if (file := sdist.extractfile(member))}


def difference(first: Path, second: Path) -> str:
    """Where two archives of one name differ; "" if nowhere."""
    if sha256(first) == sha256(second):
        return ""
    a, b = contents(first), contents(second)
    names = [name for name in sorted({*a, *b}) if a.get(name) != b.get(name)]
    return ", ".join(names) or "the archive itself"


def passed(file: Path) -> bool:
    stamp = PASSED / f"{file.name}.sha256"
    return stamp.exists() and stamp.read_text() == sha256(file)


def main() -> int:
    parser = argparse.ArgumentParser(description="Build twice, in two folders, and compare the bytes.")
    parser.add_argument("what", nargs="*", help="host, host-release, sources, or targets")
    parser.add_argument("--release", action="store_true", help="everything that is published")
    arguments = parser.parse_args()
    every = ["host-release", *targets.names(), "sources"]
    chosen = arguments.what or (every if arguments.release else ["host", *PACKS, "sources"])
    if unknown := sorted(set(chosen) - {"host", *every}):
        parser.error(f"{', '.join(unknown)}: there are host, {', '.join(every)}")
    PASSED.mkdir(parents=True, exist_ok=True)
    n_different = 0
    with tempfile.TemporaryDirectory(prefix="lucebox-elsewhere-") as folder:
        elsewhere = Elsewhere(Path(folder))
        for what in chosen:
            first = built(Here(), what)
            if all(map(passed, first)):
                print(*(f"{file.name}: checked before" for file in first), sep="\n", flush=True)
                continue
            second = {file.name: file for file in built(elsewhere, what)}
            for file in first:
                found = difference(file, second[file.name])
                n_different += bool(found)
                said = f"two builds differ in {found}" if found else f"two builds in two folders, sha256 {sha256(file)}"
                print(f"{file.name}: {said}", flush=True)
                if not found:
                    (PASSED / f"{file.name}.sha256").write_text(sha256(file))
    return 1 if n_different else 0


if __name__ == "__main__":
    sys.exit(main())
