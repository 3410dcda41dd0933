"""The installed wheel: its dependencies, its files and its metadata."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import lucebox
from lucebox import _engine


def test_engine_needs_only_the_system_libraries() -> None:
    listing = subprocess.run(["readelf", "-d", _engine.__file__], check=True, capture_output=True, text=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[([^]]+)\]", listing))
    loader = {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}  # __tls_get_addr, for thread_local variables
    assert needed <= {"libstdc++.so.6", "libgcc_s.so.1", "libm.so.6", "libc.so.6"} | loader
    assert "(RUNPATH)" not in listing and "(RPATH)" not in listing


def test_engine_names_no_build_folder() -> None:
    assert re.search(rb"/(?:root|home|tmp|work|build)/[\w./-]+", Path(_engine.__file__).read_bytes()) is None


def test_engine_is_abi3_from_python_3_12() -> None:
    assert Path(_engine.__file__).name.endswith(".abi3.so") == (sys.version_info >= (3, 12))


def test_package_is_typed() -> None:
    folder = Path(lucebox.__file__).parent
    assert (folder / "py.typed").exists()
    assert all((folder / module / "__init__.pyi").exists() for module in ("_engine", "_kernels"))


def test_the_second_module_is_of_the_same_library() -> None:
    """Drivers, thread pools and types must not exist twice. The product does not load the second module."""
    script = (
        "import sys; from lucebox import LLM, _engine; assert 'lucebox._kernels' not in sys.modules\n"
        "from lucebox import _kernels; import lucebox._kernels as again\n"
        "assert again is _kernels is sys.modules['lucebox._kernels'] and _kernels.__file__ == _engine.__file__"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_licence() -> None:
    assert metadata.metadata("lucebox")["License-Expression"] == "Apache-2.0"
    files = [file.name for file in metadata.files("lucebox") or []]
    assert "LICENSE" in files


def test_command_is_installed() -> None:
    (command,) = metadata.entry_points(group="console_scripts", name="lucebox")
    assert callable(command.load())
