"""What tests make and takes long: made by the first that wants it, of all the processes of a run (pytest -n)."""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


@functools.cache
def _folder() -> Path:
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        return Path(tempfile.mkdtemp(prefix="lucebox-tests-"))
    folder = Path(tempfile.gettempdir()) / f"lucebox-tests-{run}"
    folder.mkdir(exist_ok=True)
    return folder


def once(name: str, make: Callable[[Path], object]) -> Path:
    """A file or folder of this name that `make` writes where it is told to."""
    made = _folder() / name
    with (_folder() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            partial = _folder() / f"{name}.partial"
            shutil.rmtree(partial, ignore_errors=True)  # of one that failed
            make(partial)
            partial.rename(made)
    return made


SHARED = ("-shared", "-ldl")
OBJECT = ("-r", "-nostdlib")


def compile_library(out: Path, sources: Iterable[Path], *flags: str, kind: tuple[str, ...] = SHARED) -> None:
    """Of sources with different names, as many at a time as there are cores, and of objects."""
    # The compiler needs no sanitizer (ci/sanitize.py).
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}

    def run(*words: str | Path) -> None:
        subprocess.run(["c++", "-std=c++20", "-fPIC", "-fvisibility=hidden", *flags, *words], check=True, env=plain)

    def compiled(source: Path, folder: str) -> Path:
        if source.suffix == ".o":
            return source
        made = Path(folder, f"{source.stem}.o")
        run("-c", source, "-o", made)
        return made

    with tempfile.TemporaryDirectory(prefix="lucebox-objects-") as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(lambda source: compiled(source, folder), sources))
        run(*objects, *kind, "-o", out)
