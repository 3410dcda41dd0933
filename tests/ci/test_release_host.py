"""The parts of release_host.py that need no whole build: the tag of a published wheel, and Debian's Python headers."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
import release_host
import wheel_data as data
from project import tools_environment

DEBIAN = Path("/usr/bin/python3")
ZIP_RESOLUTION_S = 2
TAG = "manylinux_2_28_x86_64"


def tagged(folder: Path) -> Path:
    folder.mkdir()
    return release_host.with_platform(data.write(folder, data.pack_members("sim"), "py3-none-linux_x86_64"), TAG)


def test_the_tag_is_written_without_the_time(tmp_path: Path) -> None:
    first = tagged(tmp_path / "first")
    time.sleep(ZIP_RESOLUTION_S + 0.1)
    second = tagged(tmp_path / "second")
    assert first.name == second.name == f"lucebox_sim-0.1.0-py3-none-{TAG}.whl"
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("architecture", release_host.ARCHITECTURES)
def test_debians_headers(tmp_path: Path, architecture: str) -> None:
    if not list(Path("/usr/include").glob("*-linux-gnu/python3.*/pyconfig.h")):
        pytest.skip("no headers of Debian's Python")
    script = "import sysconfig; print(sysconfig.get_path('include'))"
    include = subprocess.run([DEBIAN, "-c", script], check=True, capture_output=True, text=True).stdout.strip()
    source = tmp_path / "module.cpp"
    source.write_text('#include <Python.h>\nextern "C" PyObject* PyInit_module() { return PyLong_FromLong(1); }\n')
    flags = str(release_host.cmake_defines(architecture, DEBIAN)["CMAKE_CXX_FLAGS"]).split()
    command = [release_host.compiler(architecture) / "c++", *flags, "-I", include, "-c", source, "-o", tmp_path / "o"]
    subprocess.run(command, check=True, env=tools_environment(**release_host.zig_caches()))


def test_other_pythons_need_no_more_headers(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho '/usr/include/python3.99;'\n")
    python.chmod(0o755)
    assert release_host.multiarch_headers(python) is None
