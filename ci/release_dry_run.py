"""Rehearses a release, from the tag to the users' upgrade, on this machine and without uploads. Builds this version and
the next one, checks the files, prints the upload order, and serves both versions from a loopback index, the only index
that pip and uv use. Then pip and uv install, upgrade, repair and uninstall.

    release_dry_run.py                        the host for this machine, two packs, lucebox-kernels and lucebox-tiny
                                              (`make release-dry-run`)
    release_dry_run.py --packs sm_86 sim      other packs
    release_dry_run.py --tag v0.1.0           compares this tag
    release_dry_run.py --json                 the report as JSON

It builds in a copy of the tree (build/release/dry-run/source), so the next version touches no file here and a second
run compiles little. Build tools and third-party dependencies are downloaded before anything is installed.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import pythons
import release_plan
from install_test import served
from make_index import make_pages
from project import BUILD, ROOT, tracked_files
from release_plan import Plan, ReleaseError
from release_user import Log, StepError, User
from wheels import Wheel

import targets

WORK = BUILD / "release" / "dry-run"
SOURCE = WORK / "source"
PACKS = ("gfx1151", "sim")  # the GPU pack that builds fastest, and the pack that runs on every machine
PYTHON = "3.12"  # builds the abi3 wheel and installs it


@dataclass(frozen=True)
class Row:
    step: str
    seconds: float
    result: str
    """ok, or the error."""

    def __str__(self) -> str:
        return f"{self.step:<58}{self.seconds:>7.1f} s  {self.result}"


@dataclass(frozen=True)
class Version:
    """One of the two versions, built from the copy of the tree."""

    name: str
    packs: tuple[str, ...]
    log: Log

    @property
    def dist(self) -> Path:
        return WORK / f"dist-{self.name}"

    def script(self, name: str, *words: str | Path) -> None:
        """Runs a script of the copy."""
        self.log.run(sys.executable, SOURCE / "ci" / name, *words)

    def build_host(self, *options: str) -> None:
        shutil.rmtree(self.dist, ignore_errors=True)
        self.script("release_host.py", "--python", PYTHON, "--arch", platform.machine(), "--out", self.dist, *options)

    def build_packs(self) -> None:
        self.script("build_packs.py", *self.packs)
        for name in self.packs:
            (wheel,) = (SOURCE / "build/packs").glob(f"lucebox_{targets.load(name).slug}-{self.name}-*.whl")
            shutil.copy(wheel, self.dist)

    def build_sources(self) -> None:
        self.script("build_sources.py", "--out", self.dist, *self.packs)

    def check_files(self) -> None:
        self.script("verify_wheel.py", *self.wheels())
        self.script("release_collect.py", self.dist, WORK / f"release-{self.name}", "--partial")

    def wheels(self) -> list[Path]:
        return sorted(self.dist.glob("*.whl"))


def copy_tree() -> None:
    """Copies git's files, which restores this version if a previous run raised it. An unchanged file keeps its time."""
    wanted = {SOURCE / file.relative_to(ROOT): file for file in tracked_files()}
    for copy, file in wanted.items():
        if not copy.exists() or copy.read_bytes() != file.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
    folders = [folder for folder in SOURCE.iterdir() if folder.is_dir() and folder.name != "build"]
    for file in [file for folder in folders for file in folder.rglob("*") if file.is_file()]:
        if file not in wanted:
            file.unlink()


def raise_version(version: Version, following: Version) -> None:
    file = SOURCE / "pyproject.toml"
    text = file.read_text()
    file.write_text(text.replace(f'version = "{version.name}"', f'version = "{following.name}"', 1))
    version.script("generate_targets.py")


def next_version(version: str) -> str:
    major, minor, *_ = version.split(".")
    return f"{major}.{int(minor) + 1}.0"


def compare_tag(tag: str, version: Version, following: Version) -> None:
    release_plan.check_tag(tag, version.name)
    for wrong in (version.name, f"v{following.name}"):
        try:
            release_plan.check_tag(wrong, version.name)
        except ReleaseError:
            continue
        raise StepError(f"the tag {wrong} was not refused")


def download_dependencies(version: Version) -> None:
    """Downloads with the machine's pip settings, which decide where third-party packages come from."""
    folder = WORK / "dependencies"
    shutil.rmtree(folder, ignore_errors=True)
    python = SOURCE / "build" / f"python{PYTHON}" / "bin" / "python"  # the environment of the host's build
    (host,) = version.dist.glob("lucebox-*.whl")
    version.log.run(python, "-m", "pip", "download", "-q", "--only-binary", ":all:", "-d", folder, host)
    (folder / host.name).unlink()


def make_indexes(version: Version, following: Version) -> None:
    """Makes two indexes: one with this version alone, one with both versions."""
    others = sorted((WORK / "dependencies").glob("*.whl"))
    make_pages(WORK / "index", [*map(Wheel, [*others, *version.wheels()])])
    make_pages(WORK / "index-next", [*map(Wheel, [*others, *version.wheels(), *following.wheels()])])


@dataclass(frozen=True)
class Use:
    """A user's steps, with pip or with uv."""

    user: User
    version: Version
    following: Version

    @property
    def slugs(self) -> list[str]:
        return [targets.load(name).slug for name in self.version.packs]

    @property
    def wanted(self) -> str:
        return f"lucebox[{','.join([*self.slugs, 'demo'])}]"

    def expect(self, version: Version, usable: tuple[str, ...]) -> None:
        found = self.user.look()
        if found != {"version": version.name, "packs": sorted(version.packs), "usable": sorted(usable)}:
            raise StepError(f"installed is {found}, expected {version.name}, of its packs usable {list(usable)}")

    def expect_conflicts(self, expected: bool) -> None:
        if self.user.has_conflicts() != expected:
            raise StepError(f"{self.user.installer} check {'finds nothing' if expected else 'finds a conflict'}")

    def from_index(self, name: str, *words: str) -> None:
        with served(WORK / name, speaks_json=self.user.installer == "uv") as (url, _):
            self.user.install(url, *words)

    def install(self) -> None:
        """Installs this version with its packs and the demo's model into a fresh environment."""
        self.user.make()
        self.from_index("index", self.wanted)
        self.expect(self.version, self.version.packs)
        self.expect_conflicts(False)

    def run(self) -> None:
        self.install()
        self.user.lucebox("run", "tiny-hybrid", "def add(a, b):", "--max-tokens", "8", "--device", "cpu")
        if "sim" in self.version.packs:
            self.user.lucebox("selftest", "--device", "sim")

    def upgrade(self) -> None:
        """Upgrades the host together with the packs that its extras pin."""
        self.from_index("index-next", "--upgrade", self.wanted)
        self.expect(self.following, self.following.packs)
        self.expect_conflicts(False)

    def upgrade_host_alone(self) -> None:
        """Upgrades only the host: the check reports outdated packs, and doctor repairs the installation."""
        self.install()
        self.from_index("index-next", "--upgrade", "lucebox")
        self.expect(self.following, ())
        self.expect_conflicts(True)
        line = f'pip install "lucebox[{",".join(sorted(self.slugs))}]"'
        if (said := self.user.doctor()) != line:
            raise StepError(f"lucebox doctor says {said}, expected {line}")
        with served(WORK / "index-next", speaks_json=self.user.installer == "uv") as (url, _):
            self.user.lucebox("doctor", "--fix", "--yes", "--index-url", url)
        self.expect(self.following, self.following.packs)
        if (said := self.user.doctor()) is not None:
            raise StepError(f"lucebox doctor still says {said}")

    def remove(self) -> None:
        self.user.remove(["lucebox", "lucebox-tiny", *(f"lucebox-{slug}" for slug in self.slugs)])

    def steps(self) -> list[tuple[str, Callable[[], None]]]:
        name = self.user.installer
        return [
            (f"{name}: install {self.wanted}, run it", self.run),
            (f"{name}: upgrade with packs", self.upgrade),
            (f"{name}: remove", self.remove),
            (f"{name}: upgrade the host alone, doctor --fix", self.upgrade_host_alone),
            (f"{name}: remove again", self.remove),
        ]


def steps(plan: Plan, packs: tuple[str, ...], tag: str, log: Log, python: Path) -> list[tuple[str, Callable[[], None]]]:
    """All steps, in order."""
    version, following = (Version(name, packs, log) for name in (plan.version, next_version(plan.version)))
    uses = [Use(User(name, WORK / name, python, log), version, following) for name in ("pip", "uv")]
    a, b = version.name, following.name
    return [
        (f"the tag is the version: {tag}", partial(compare_tag, tag, version, following)),
        ("copy the tree", copy_tree),
        (f"{a}: build and try the host", version.build_host),
        (f"{a}: build packs", version.build_packs),
        (f"{a}: sdists, lucebox-kernels, lucebox-tiny", version.build_sources),
        (f"{a}: verify wheels, metadata, twine", version.check_files),
        (f"raise the version to {b}", partial(raise_version, version, following)),
        (f"{b}: build the host", partial(following.build_host, "--no-try")),
        (f"{b}: build packs", following.build_packs),
        (f"{b}: sdists, lucebox-kernels, lucebox-tiny", following.build_sources),
        (f"{b}: verify wheels, metadata, twine", following.check_files),
        ("download what lucebox needs of others", partial(download_dependencies, version)),
        ("make the indexes", partial(make_indexes, version, following)),
        *(step for use in uses for step in use.steps()),
    ]


def run(todo: list[tuple[str, Callable[[], None]]], show: Callable[[Row], None]) -> list[Row]:
    """Runs the steps up to the first failure."""
    rows: list[Row] = []
    for name, step in todo:
        start = time.perf_counter()
        try:
            step()
            result = "ok"
        except (StepError, ReleaseError, targets.TargetError) as error:
            result = f"FAILED, {error}"
        rows.append(Row(name, round(time.perf_counter() - start, 1), result))
        show(rows[-1])
        if result != "ok":
            break
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="A release without its uploads.")
    parser.add_argument("--packs", nargs="+", default=list(PACKS), metavar="TARGET", choices=targets.names())
    parser.add_argument("--tag", help="the tag to compare (v and the version)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    arguments = parser.parse_args()
    try:
        plan = release_plan.plan()
    except ReleaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    python = pythons.find(PYTHON)
    if python is None:
        print(f"error: Python {PYTHON} is not on PATH, in pyenv or in uv", file=sys.stderr)
        return 1
    log = Log(WORK / "log.txt")
    WORK.mkdir(parents=True, exist_ok=True)
    log.file.write_text("")
    order = [name for name in plan.targets if name in arguments.packs]
    todo = steps(plan, tuple(order), arguments.tag or f"v{plan.version}", log, python)
    if not arguments.json:
        print(release_plan.table(plan), end="\n\n", flush=True)
    rows = run(todo, lambda row: None if arguments.json else print(row, flush=True))
    is_ok = len(rows) == len(todo) and rows[-1].result == "ok"
    if arguments.json:
        print(json.dumps({"ok": is_ok, "plan": asdict(plan), "steps": [asdict(row) for row in rows]}, indent=2))
    else:
        seconds = sum(row.seconds for row in rows)
        print(f"\n{len(rows)} of {len(todo)} steps in {seconds:.0f} s; {log.file.relative_to(ROOT)} has what they said")
        print(*(f"missing: {one}" for one in plan.missing), sep="\n")
    return 0 if is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
