"""CMake refuses with one sentence what lucebox does not support: Windows, and free-threaded Pythons."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from project import ROOT, tools_environment


@pytest.mark.parametrize("define", ["-DLUCEBOX_TARGET=", "-DLUCEBOX_TARGET=gfx1151"])
def test_windows_is_refused(tmp_path: Path, define: str) -> None:
    command = ["cmake", "-S", ROOT, "-B", tmp_path, "-DCMAKE_SYSTEM_NAME=Windows", define]
    done = subprocess.run(command, capture_output=True, text=True, env=tools_environment())
    assert done.returncode == 1
    assert "lucebox does not build on Windows: use WSL 2" in " ".join(done.stderr.split())


def test_a_free_threaded_python_is_refused(tmp_path: Path) -> None:
    """A Python that says so: like python3.14t, whose code is not looked at."""
    python = tmp_path / "python3"
    answer = f'case "$*" in *Py_GIL_DISABLED*) echo 1;; *) exec \'{sys.executable}\' "$@";; esac'
    python.write_text(f"#!/bin/sh\n{answer}\n")
    python.chmod(0o755)
    command = ["cmake", "-S", ROOT, "-B", tmp_path / "build", "-DLUCEBOX_PYTHON=ON", f"-DPython_EXECUTABLE={python}"]
    done = subprocess.run([*command, "-G", "Ninja"], capture_output=True, text=True, env=tools_environment())
    assert done.returncode == 1
    assert "is a free-threaded Python, which lucebox does not support" in " ".join(done.stderr.split())
