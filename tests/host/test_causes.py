"""Each cause that keeps a GPU from being used, by stand-in drivers and by the files of a machine, and the table of
causes in docs/doctor.md."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import machine_data
import pytest
from lucebox.packs import causes, doctor
from lucebox.packs.drivers import Gpu, Survey
from test_device import copy_of_hip, drivers, run  # noqa: F401 a fixture

ROOT = Path(__file__).parents[2]
NOBODY = 65534
RTX_5090, RADEON = "GeForce RTX 5090", "gfx1201"
STRIX = Gpu("hip", 0, "Radeon 8060S", "gfx1151", "HIP 7.1", "7.1", 103_000_000_000, 90_000_000_000)

# Asks the drivers of this process about a root with one GPU, after `prepare`; prints the GPU's reason and its step.
ASK = """
import ctypes, json, os, sys
from pathlib import Path
from lucebox.packs.doctor import examine
from lucebox.packs import drivers, machine
def ask(name, root):
    (device,) = examine(drivers.survey(), Path(root)).devices
    print(json.dumps([name, device.reason, device.driver]))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that another user can read, unlike pytest's."""
    made = Path(tempfile.mkdtemp(prefix="lucebox-causes-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


def nvidia(root: Path, *files: str, driver: str | None = "nvidia", module: str | None = "580.95.05") -> Path:
    """A machine with an RTX 5090, its kernel module and these empty files."""
    machine_data.pci(root, "0000:01:00.0", "10de", "2b85", driver=driver)
    if module:
        machine_data.nvidia(root, "0000:01:00.0", RTX_5090, module)
    device_files(root, files)
    return root


def amd(root: Path, *files: str, driver: str | None = "amdgpu") -> Path:
    """A machine with a Radeon of the architecture gfx1201 and these empty files."""
    machine_data.pci(root, "0000:41:00.0", "1002", "7550", driver=driver)
    machine_data.kfd(root, node=1, version=120001, location=0x4100)
    device_files(root, files)
    return root


def device_files(root: Path, files: Iterable[str]) -> None:
    for file in files:
        machine_data.write(root, file, "")
        (root / file).chmod(0o666)


def answers(libraries: Path, script: str) -> dict[str, tuple[str, str]]:
    """Reason and step by name, as the lines of `script` ask them."""
    lines = map(json.loads, run(libraries, "-c", ASK + script).splitlines())
    return {name: (reason, step) for name, reason, step in lines}


def check(got: tuple[str, str], cause: str, /, **words: str) -> None:
    expected = causes.CAUSES[cause].filled(**words)
    assert got == (expected.what, expected.step)


def test_statuses_of_the_nvidia_driver(drivers: Path, folder: Path) -> None:  # noqa: F811
    nvidia(folder)
    script = "cuda = ctypes.CDLL('libcuda.so.1')\ncuda.standin_set(1, 13000, b'12.0')\n" + "".join(
        f"cuda.standin_fail({call!r}, {status}, 0)\nask('{status}', {str(folder)!r})\n"
        for call, status in ((b"cuGetProcAddress_v2", 34), *((b"cuInit", n) for n in (802, 803, 804, 999)))
    )
    found = answers(drivers, script)
    for status, cause in causes.BY_STATUS.items():
        check(found[str(status)], cause)


def test_an_nvidia_driver_that_reports_no_device(drivers: Path, folder: Path) -> None:  # noqa: F811
    nodes = "dev/nvidiactl"
    roots = {
        "old": nvidia(folder / "old", nodes, module="550.54.14"),
        "old library": nvidia(folder / "library", nodes, module=None, driver=None),
        "module": nvidia(folder / "module", nodes, module=None, driver=None),
        "nouveau": nvidia(folder / "nouveau", nodes, module=None, driver="nouveau"),
        "files": nvidia(folder / "files"),
        "container": nvidia(folder / "container", ".dockerenv"),
        "no device": nvidia(folder / "all", nodes),
        "hidden": folder / "all",
        "rights": folder / "all",
    }
    setup = "ctypes.CDLL('libcuda.so.1').standin_set(0, {version}, b'12.0')\n"
    asks = [f"ask({name!r}, {str(root)!r})\n" for name, root in roots.items() if name not in ("old library", "hidden")]
    hide = f"os.environ['CUDA_VISIBLE_DEVICES'] = '7'\nask('hidden', {str(roots['hidden'])!r})\n"
    found = answers(
        drivers, setup.format(version=13000) + "".join(asks[:-1]) + lock(folder / "all" / nodes, asks[-1]) + hide
    )
    old = answers(drivers, setup.format(version=12040) + f"ask('old library', {str(roots['old library'])!r})\n")
    update = "Update the NVIDIA driver to 570 or newer"
    check(found["old"], "old for chip", found="550.54.14", install=update)
    check(old["old library"], "old for chip", found="550", install=update)
    check(found["module"], "module", module="nvidia")
    assert found["nouveau"][0].startswith(
        "the kernel gave it to nouveau, not to nvidia; the kernel module nvidia does "
    )
    check(found["files"], "device files", file="/dev/nvidiactl")
    check(found["container"], "device files in a container", file="/dev/nvidiactl", flags="--gpus all")
    check(found["no device"], "no device", driver="NVIDIA driver")
    check(found["rights"], "nvidia rights", file="/dev/nvidiactl")
    check(found["hidden"], "hidden", variable="CUDA_VISIBLE_DEVICES", value="7")


def test_a_hip_runtime_that_reports_no_device(drivers: Path, folder: Path) -> None:  # noqa: F811
    nodes = ("dev/kfd", "dev/dri/renderD128")
    roots = {
        "module": amd(folder / "module", driver=None),
        "no kfd": amd(folder / "no_kfd"),
        "container": amd(folder / "container", "run/.containerenv"),
        "no device": amd(folder / "all", *nodes),
        "rights": folder / "all",
    }
    locked = folder / "all" / nodes[1]
    asks = [f"ask({name!r}, {str(root)!r})\n" for name, root in roots.items()]
    setup = "ctypes.CDLL('libamdhip64.so.7').standin_set(0, 70151831, b'gfx1201')\n"
    hide = f"os.environ['ROCR_VISIBLE_DEVICES'] = ''\nask('hidden', {str(roots['rights'])!r})\n"
    found = answers(drivers, setup + "".join(asks[:-1]) + lock(locked, asks[-1]) + hide)
    check(found["module"], "module", module="amdgpu")
    check(found["no kfd"], "no kfd")
    flags = "--device /dev/kfd --device /dev/dri"
    check(found["container"], "device files in a container", file="/dev/kfd", flags=flags)
    check(found["no device"], "no device", driver="HIP runtime")
    check(found["rights"], "rights", file="/dev/dri/renderD128")
    check(found["hidden"], "hidden", variable="ROCR_VISIBLE_DEVICES", value="")


def lock(file: Path, ask: str) -> str:
    """A script that asks as a user who may not open the file, which root may."""
    return f"os.chmod({str(file)!r}, 0)\nif os.getuid() == 0: os.setresuid({NOBODY}, {NOBODY}, {NOBODY})\n{ask}"


def test_a_missing_nvidia_library(folder: Path) -> None:
    roots = {
        "container": nvidia(folder / "container"),
        "nixos": nvidia(folder / "nixos"),
        "libraries": nvidia(folder / "libraries"),
        "no driver": nvidia(folder / "none", module=None, driver=None),
    }
    machine_data.write(folder, "container/proc/1/cgroup", "12:cpuset:/kubepods/besteffort/pod1\n")
    machine_data.write(folder, "nixos/etc/os-release", "NAME=NixOS\nID=nixos\n")
    found = answers(folder, "".join(f"ask({name!r}, {str(root)!r})\n" for name, root in roots.items()))
    check(found["container"], "container")
    check(found["nixos"], "nixos")
    check(found["libraries"], "libraries", found="580.95.05")
    reason, step = found["no driver"]
    assert reason.startswith("cannot load the NVIDIA driver: ") and step == "Install the NVIDIA driver 570 or newer"


def test_a_missing_hip_runtime(drivers: Path, folder: Path) -> None:  # noqa: F811
    amd(folder)
    script = f"ask('wheels', {str(folder)!r})\n"
    reason, step = answers(folder, script)["wheels"]
    assert reason.startswith("cannot load the AMD HIP runtime: ")
    assert step.endswith(
        '`pip install --index-url https://repo.amd.com/rocm/whl-multi-arch/ "rocm[libraries,device-gfx1201]"`'
    )
    copy_of_hip(drivers, folder / "opt/rocm-8.0.0/lib", 8)
    check(answers(folder, script)["wheels"], "new hip", library=f"{folder}/opt/rocm-8.0.0/lib/libamdhip64.so.8")


def test_libraries_outside_the_loaders_path(drivers: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """ROCM_PATH is before /opt/rocm; NixOS' driver is in /run/opengl-driver."""
    named = folder / "mine"
    copy_of_hip(drivers, named / "lib", 7)
    copy_of_hip(drivers, folder / "opt/rocm/lib", 6)
    (folder / "run/opengl-driver/lib").mkdir(parents=True)
    shutil.copy(drivers / "libcuda.so.1", folder / "run/opengl-driver/lib")
    script = (
        "import ctypes, sys; from pathlib import Path; from lucebox._engine import gpu\n"
        "from lucebox.packs import driver_libraries\n"
        "for backend, version, chip in (('hip', 70151831, b'gfx1201'), ('cuda', 13000, b'12.0')):\n"
        f"    path = driver_libraries.load(backend, Path({str(folder)!r}))\n"
        "    ctypes.CDLL(path).standin_set(1, version, chip)\n"
        "    print(path, *(one.architecture for one in gpu.devices(backend)))"
    )
    cuda = f"{folder}/run/opengl-driver/lib/libcuda.so.1 sm_120"
    old = script.replace("70151831", "60342133")
    assert run(folder, "-c", old).splitlines() == [f"{folder}/opt/rocm/lib/libamdhip64.so.6 gfx1201", cuda]
    monkeypatch.setenv("ROCM_PATH", str(named))
    assert run(folder, "-c", script).splitlines() == [f"{named}/lib/libamdhip64.so.7 gfx1201", cuda]


def test_a_version_with_known_faults_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from lucebox.cli.doctor import print_report

    report = doctor.examine(Survey((STRIX,), {}), tmp_path)
    print_report(report)
    warning = (
        "HIP runtime 7.1 has known faults on gfx1151: page faults and errors of memory in use while the GPU computes"
    )
    assert f"\nWarning: {warning}; 7.13 mends them.\n" in capsys.readouterr().out
    assert causes.known_fault("amd", "gfx1151", "7.13") is None
    assert causes.known_fault("amd", "gfx1100", "7.1") is None


def test_the_documented_table_has_every_cause() -> None:
    text = (ROOT / "docs/doctor.md").read_text()
    rows = [line for line in text.split("## Causes")[1].split("\n## ")[0].splitlines() if line.startswith("| ")]
    assert rows[1:] == [
        f"| {cause.what} | {cause.step} |" for cause in causes.CAUSES.values() if cause.what != "{error}"
    ]
