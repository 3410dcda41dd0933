"""Builds expensive test inputs once per run: the first process of a run (pytest -n) that needs one makes it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Shared by all processes of a run; set by tests/conftest.py.
folder: Path | None = None


def once(name: str, make: Callable[[Path], object]) -> Path:
    """Returns the file or folder of this name, after `make` has written it to the path that it gets."""
    assert folder, "once() is for tests and fixtures"
    folder.mkdir(exist_ok=True)
    made = folder / name
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            partial = folder / f"{name}.partial"
            shutil.rmtree(partial, ignore_errors=True)  # left by a failed attempt
            make(partial)
            partial.rename(made)
    return made


SHARED = ("-shared", "-ldl")
OBJECT = ("-r", "-nostdlib")


def compile_library(out: Path, sources: Iterable[Path], *flags: str, kind: tuple[str, ...] = SHARED) -> None:
    """Compiles sources, which need different names, in parallel on all cores, and links them with any objects."""
    # The compiler needs no sanitizer (ci/sanitize.py).
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}

    def run(*words: str | Path) -> None:
        subprocess.run(["c++", "-std=c++20", "-fPIC", "-fvisibility=hidden", *flags, *words], check=True, env=plain)

    def compiled(source: Path, objects: str) -> Path:
        if source.suffix == ".o":
            return source
        made = Path(objects, f"{source.stem}.o")
        run("-c", source, "-o", made)
        return made

    with tempfile.TemporaryDirectory(prefix="lucebox-objects-") as objects, ThreadPoolExecutor(os.cpu_count()) as pool:
        run(*pool.map(lambda source: compiled(source, objects), sources), *kind, "-o", out)
