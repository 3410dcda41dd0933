"""CMake refuses Windows with one sentence, for the host and for packs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from project import ROOT, tools_environment


@pytest.mark.parametrize("define", ["-DLUCEBOX_TARGET=", "-DLUCEBOX_TARGET=gfx1151"])
def test_windows_is_refused(tmp_path: Path, define: str) -> None:
    command = ["cmake", "-S", ROOT, "-B", tmp_path, "-DCMAKE_SYSTEM_NAME=Windows", define]
    done = subprocess.run(command, capture_output=True, text=True, env=tools_environment())
    assert done.returncode == 1
    assert "lucebox does not build on Windows: use WSL 2" in " ".join(done.stderr.split())
