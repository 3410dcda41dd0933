"""Shared by the scripts in ci/: paths, running commands, building and installing the wheel."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
# Time stamps inside wheels and archives: 1980-01-01, the earliest that zip has.
SOURCE_DATE_EPOCH = "315532800"
# Two processes per core, pinned to a core (tests/conftest.py), because a seventh of the tests' time is waiting.
PYTEST = ("-m", "pytest", "-n", str(2 * len(os.sched_getaffinity(0))), "--dist", "worksteal")


def tools_environment(python: Path = Path(sys.executable), **more: str) -> dict[str, str]:
    """Environment variables with the tools in this interpreter's folder (cmake, ninja, clang-format, ...) first on
    PATH, with a compiler cache for CMake, and with one time for everything that writes a time into a file."""
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **_compiler_cache(), "PATH": path, "SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH, **more}


def _compiler_cache() -> dict[str, str]:
    """ccache's settings. It rewrites no paths, so that objects are identical to a build without ccache. The sloppiness
    settings are required to cache objects that use a precompiled header."""
    ccache = Path(sys.executable).parent / "ccache"
    if not ccache.exists():
        return {}
    return {
        "CMAKE_CXX_COMPILER_LAUNCHER": str(ccache),
        "CCACHE_NOHASHDIR": "1",
        "CCACHE_SLOPPINESS": "pch_defines,time_macros",
    }


def run(*command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> None:
    """Prints and runs a command; exits the script if it fails."""
    words = [str(part) for part in command]
    print("+", *(word.removeprefix(f"{ROOT}/") for word in words), flush=True)
    code = subprocess.run(words, cwd=cwd, env=env or tools_environment()).returncode
    if code:
        raise SystemExit(f"exit code {code}: {' '.join(words)}")


def tracked_files(*patterns: str) -> list[Path]:
    """The files of the working tree that git tracks or would track."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns],
        check=True,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    return [path for name in sorted(set(listing.stdout.split("\0"))) if name and (path := ROOT / name).is_file()]


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def build_wheel(
    python: Path = Path(sys.executable), *, source: Path = ROOT, isolated: bool = False, settings: Sequence[str] = ()
) -> Path:
    """Builds the lucebox wheel for this interpreter. Builds in place without isolation are incremental."""
    out = source / "build" / "wheels" / python.parent.parent.name.lstrip(".")
    for old in out.glob("*.whl"):
        old.unlink()
    options = [f"--config-settings={setting}" for setting in settings]
    options += [] if isolated else ["--no-build-isolation"]
    pip = (python, "-m", "pip", "wheel", "-qq", "--no-deps")
    fresh = {"CCACHE_DISABLE": "1"} if isolated else {}
    run(*pip, *options, "--wheel-dir", out, source, env=tools_environment(python, **fresh))
    (wheel,) = out.glob("*.whl")
    return wheel


def install(python: Path, wheel: Path, extra: str = "") -> None:
    """Installs a lucebox wheel and its dependencies; does little if exactly this wheel is already installed."""
    # --no-compile: compiling every module of the dependencies takes longer than compiling those that the tests import.
    pip = (python, "-m", "pip", "install", "-qq", "--no-compile")
    run(*pip, f"{wheel}[{extra}]" if extra else wheel)
    if _installed_sha256(python) != sha256(wheel):  # the same version with other content
        run(*pip, "--force-reinstall", "--no-deps", wheel)


def installed_wheel(python: Path = Path(sys.executable)) -> Path | None:
    """The wheel of build_wheel that is installed in this interpreter's environment; None if another one is."""
    wheels = (BUILD / "wheels" / python.parent.parent.name.lstrip(".")).glob("*.whl")
    return next((wheel for wheel in wheels if sha256(wheel) == _installed_sha256(python)), None)


def _installed_sha256(python: Path) -> str | None:
    """The hash that pip recorded for the installed wheel; None for an editable install."""
    for file in python.parent.parent.glob("lib/python*/site-packages/lucebox-*.dist-info/direct_url.json"):
        hashes: dict[str, str] = json.loads(file.read_text()).get("archive_info", {}).get("hashes", {})
        return hashes.get("sha256")
    return None
