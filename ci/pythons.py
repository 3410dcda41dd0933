"""Finds other Python interpreters on this machine: on PATH, in pyenv, in uv."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path


def _candidates(version: str) -> Iterator[Path]:
    if found := shutil.which(f"python{version}"):
        yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    uv = Path.home() / ".local" / "share" / "uv" / "python"
    for folder in (*pyenv.glob(f"versions/{version}.*"), *uv.glob(f"cpython-{version}.*")):
        yield folder / "bin" / f"python{version}"


def find(version: str) -> Path | None:
    """The interpreter of this version ("3.12"), or None. A pyenv shim whose version is not active does not count."""
    for path in _candidates(version):
        try:
            asked = subprocess.run(
                [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)"],
                check=True,
                capture_output=True,
                text=True,
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        answer, executable = asked.stdout.strip().split(" ", 1)
        if answer == version:
            return Path(executable)
    return None
