"""The device layer over the drivers of all vendors: the simulator, and stand-ins for libcuda.so.1 and libamdhip64.so.7
that a scenario can script (tests/standin)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from device_scenarios import SCENARIOS
from once import OBJECT, compile_library, once

ROOT = Path(__file__).parents[2]
DEVICE = ROOT / "src/cpp/device"
STANDIN = ROOT / "tests/standin"
SIMULATOR = (
    *(DEVICE / name for name in ("driver_sim.cpp", "elf.cpp", "sim_image.cpp", "sim_thread.cpp")),
    ROOT / "src/cpp/base/error.cpp",
)
INCLUDES = (f"-I{ROOT / 'src/cpp'}", f"-I{STANDIN}")


def compile_simulator(out: Path) -> None:
    """As one translation unit, because each file alone spends a second on headers."""
    unit = out.with_name("simulator.cpp")
    unit.write_text("".join(f'#include "{source}"\n' for source in SIMULATOR))
    compile_library(out, [unit], *INCLUDES, kind=OBJECT)


def compile_drivers(folder: Path, *defines: str) -> None:
    """Compiles both stand-ins, with the names by which the dynamic loader knows them."""
    simulator = once("simulator.o", compile_simulator)
    folder.mkdir(exist_ok=True)
    for library, source in (("libcuda.so.1", "cuda.cpp"), ("libamdhip64.so.7", "hip.cpp")):
        name = f"-Wl,-soname,{library}"
        compile_library(folder / library, (STANDIN / source, simulator), *INCLUDES, *defines, name)


@pytest.fixture(scope="session")
def drivers() -> Path:
    """A folder with the stand-ins as they are now."""
    return once("drivers", compile_drivers)


def run(drivers: Path, *command: str | Path) -> str:
    """Runs a Python process that finds these drivers; returns its output, or fails with it if the process fails."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(drivers)}
    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def results(drivers: Path) -> dict[str, tuple[int, str]]:
    """Exit status and output of every scenario, each run in a separate process."""
    kernels = once("device_kernels.so", lambda out: compile_library(out, (STANDIN / "kernels.cpp",), *INCLUDES))
    scenarios = ROOT / "tests/host/device_scenarios.py"
    output = once("device_results.json", lambda out: out.write_text(run(drivers, scenarios, kernels)))
    found: dict[str, tuple[int, str]] = json.loads(output.read_text())
    return found


@pytest.mark.parametrize("name", [f"{name}-{vendor}" for name, (_, vendors) in SCENARIOS.items() for vendor in vendors])
def test_scenario(results: dict[str, tuple[int, str]], name: str) -> None:
    status, output = results[name]
    assert status == 0, output


def error_of(drivers: Path, vendor: str) -> str:
    """The error for listing devices on a machine with these libraries."""
    script = (
        "from lucebox import errors; from lucebox._engine import gpu\n"
        f"try: gpu.devices('{vendor}')\n"
        "except errors.DeviceError as error: print(error)\n"
        "else: raise SystemExit('no error')"
    )
    return run(drivers, "-c", script)


def test_no_driver(tmp_path: Path) -> None:
    message = error_of(tmp_path, "cuda")
    assert message.startswith("cannot load the NVIDIA driver: libcuda.so.1: cannot open shared object file")
    assert "Install the newest NVIDIA driver for this GPU" in message and "525 or newer" in message
    message = error_of(tmp_path, "hip")
    assert message.startswith("cannot load the AMD HIP runtime: libamdhip64.so.7: cannot open")
    assert "libamdhip64.so.6" in message and "Install ROCm 6 or newer" in message


@pytest.mark.parametrize(("vendor", "file"), [("cuda", "libcuda.so.1"), ("hip", "libamdhip64.so.7")])
def test_text_file_as_driver(tmp_path: Path, vendor: str, file: str) -> None:
    (tmp_path / file).write_text("not a library\n" * 100)
    message = error_of(tmp_path, vendor)
    assert f"{tmp_path / file}: invalid ELF header" in message and "Install" in message


def test_library_without_a_driver_in_it(tmp_path: Path) -> None:
    empty = tmp_path / "empty.cpp"
    empty.write_text("")
    compile_library(tmp_path / "libcuda.so.1", (empty,))
    compile_library(tmp_path / "libamdhip64.so.7", (empty,))
    message = error_of(tmp_path, "cuda")
    assert "libcuda.so.1 is no NVIDIA driver: it has no cuGetProcAddress_v2" in message
    assert "lucebox needs driver 525 or newer" in message
    message = error_of(tmp_path, "hip")
    assert "libamdhip64.so.7 lacks hipInit, " in message and "Install ROCm 6 or newer" in message


@pytest.mark.slow  # 3 s: compiles both stand-ins
def test_drivers_of_another_age(tmp_path: Path) -> None:
    compile_drivers(tmp_path, "-DSTANDIN_OLD")
    message = error_of(tmp_path, "cuda")
    assert "libcuda.so.1 is a driver for CUDA 11.4 (branch 470): it has no cuGetProcAddress_v2" in message
    assert "lucebox needs driver 525 or newer" in message
    assert "libamdhip64.so.7 lacks hipGetDevicePropertiesR0600: the runtime is too old" in error_of(tmp_path, "hip")


def copy_of_hip(drivers: Path, folder: Path, version: int) -> None:
    """The stand-in for HIP under the name of another major version."""
    folder.mkdir(parents=True, exist_ok=True)
    image = (drivers / "libamdhip64.so.7").read_bytes()
    name = b"libamdhip64.so.%d\0"
    (folder / f"libamdhip64.so.{version}").write_bytes(image.replace(name % 7, name % version))


def test_rocm_6(drivers: Path, tmp_path: Path) -> None:
    copy_of_hip(drivers, tmp_path, 6)
    script = (
        "import ctypes; from lucebox._engine import gpu\n"
        "ctypes.CDLL('libamdhip64.so.6').standin_set(1, 60342133, b'gfx1100')\n"
        "print([(i.architecture, i.driver) for i in gpu.devices('hip')])"
    )
    assert run(tmp_path, "-c", script).strip() == "[('gfx1100', 'HIP 6.3')]"
