"""The report of `lucebox doctor` on fake machines: /proc and /sys trees, installed packs, and answers of drivers."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import lucebox
import machine_data
import pack_data
import pytest
import test_device
from lucebox.cli.doctor import print_report
from lucebox.packs.doctor import Report, examine
from lucebox.packs.drivers import Gpu, Survey, survey
from test_device import drivers  # noqa: F401 a fixture

NO_CUDA = "cannot load the NVIDIA driver"
NO_HIP = "cannot load the AMD HIP runtime"
SILENT = Survey((), {"cuda": NO_CUDA, "hip": NO_HIP})
H100 = Gpu("cuda", 0, "NVIDIA H100 80GB HBM3", "sm_90", "CUDA 13.0", "580", 85_000_000_000, 84_000_000_000)
STRIX = Gpu("hip", 0, "Radeon 8060S", "gfx1151", "HIP 7.1", "7.1", 103_000_000_000, 90_000_000_000)


def diagnosis(root: Path, answers: Survey = SILENT) -> Report:
    with pack_data.on_path(root / "site"):
        return examine(answers, root)


def reinstall(slug: str) -> str:
    return f"pip install --force-reinstall --no-deps lucebox-{slug}=={lucebox.__version__}"


def test_no_gpu_is_well(tmp_path: Path) -> None:
    report = diagnosis(tmp_path)
    assert (report.ok, report.devices, report.install) == (True, (), None)
    assert report.verdict == "No GPU found. Models run on the CPU."
    assert [driver.error for driver in report.drivers] == [NO_CUDA, NO_HIP]


def test_wsl_without_a_gpu_says_where_it_comes_from(tmp_path: Path) -> None:
    machine_data.write(tmp_path, "proc/sys/kernel/osrelease", "6.6.87.2-microsoft-standard-WSL2\n")
    report = diagnosis(tmp_path)
    assert report.ok and report.host.wsl
    assert report.verdict.startswith("No GPU found. WSL shows a GPU once Windows has a driver for it.")


def test_a_gpu_with_its_pack_is_ready(tmp_path: Path) -> None:
    pack_data.install(tmp_path / "site", "sm_90")
    report = diagnosis(tmp_path, Survey((H100,), {"hip": NO_HIP}))
    (device,) = report.devices
    assert (device.device, device.pack, device.install) == ("cuda:0", "sm_90", None)
    assert (device.total_bytes, device.free_bytes) == (H100.total_bytes, H100.free_bytes)
    (pack,) = report.packs
    assert (pack.devices, pack.n_kernels, pack.error) == (("cuda:0",), 2, None)
    assert pack.bytes == sum(map(len, pack_data.CODE.values()))
    assert (report.ok, report.install) == (True, None)
    assert report.verdict == (
        "cuda:0 (NVIDIA H100 80GB HBM3) ready; `lucebox selftest --device cuda:0` checks every kernel."
    )
    assert dataclasses.astuple(report.drivers[0]) == ("cuda", "CUDA 13.0", None, None)


def test_two_cards_of_a_vendor_may_share_a_model(tmp_path: Path) -> None:
    pack_data.install(tmp_path / "site", "sm_90")
    report = diagnosis(tmp_path, Survey((H100, dataclasses.replace(H100, index=1)), {"hip": NO_HIP}))
    assert report.verdict.endswith("every kernel. A model that is too large for one: --device cuda:0,cuda:1.")


def test_missing_packs_come_as_one_line_for_the_machine(tmp_path: Path) -> None:
    report = diagnosis(tmp_path, Survey((H100, dataclasses.replace(H100, index=1), STRIX), {}))
    assert report.install == 'pip install "lucebox[sm90,gfx1151]"'
    assert not report.ok
    assert report.verdict == "No GPU of this machine is usable yet; the table has the reasons. Models run on the CPU."


def test_one_usable_gpu_of_two_is_well_and_the_line_is_for_the_other(tmp_path: Path) -> None:
    pack_data.install(tmp_path / "site", "gfx1151")
    report = diagnosis(tmp_path, Survey((H100, STRIX), {}))
    assert report.ok
    assert report.install == 'pip install "lucebox[sm90]"'
    assert [device.pack for device in report.devices] == [None, "gfx1151"]


def test_a_compatible_pack_is_used_and_the_better_one_named(tmp_path: Path) -> None:
    pack_data.install(tmp_path / "site", "sm_80")
    report = diagnosis(tmp_path, Survey((dataclasses.replace(H100, architecture="sm_86"),), {}))
    assert (report.ok, report.devices[0].pack) == (True, "sm_80")
    assert report.install == 'pip install "lucebox[sm86]"'


def test_a_damaged_pack_is_told_where_it_is_and_where_it_was_needed(tmp_path: Path) -> None:
    folder = pack_data.install(tmp_path / "site", "sm_90")
    (folder / "matvec.cubin").write_bytes(b"short")
    report = diagnosis(tmp_path, Survey((H100,), {}))
    error = report.packs[0].error
    assert error is not None and "has 5 bytes, the manifest says" in error
    assert error.endswith(f"; {reinstall('sm90')}")
    assert report.devices[0].reason == error
    assert (report.ok, report.install) == (False, reinstall("sm90"))


def test_a_pack_of_another_version_is_installed_again(tmp_path: Path) -> None:
    pack_data.install(tmp_path / "site", "sm_90", content=pack_data.manifest("sm_90", version="0.0.9"))
    report = diagnosis(tmp_path, Survey((H100, STRIX), {}))
    assert "is version 0.0.9" in report.devices[0].reason
    assert (report.ok, report.install) == (False, 'pip install "lucebox[sm90,gfx1151]"')


def test_missing_and_damaged_packs_are_mended_by_one_line(tmp_path: Path) -> None:
    pack_data.install(tmp_path / "site", "sm_90", content="{")
    report = diagnosis(tmp_path, Survey((H100, STRIX), {}))
    assert report.install == f'pip install "lucebox[gfx1151]" && {reinstall("sm90")}'


def test_two_packs_of_one_target_name_the_one_to_remove(tmp_path: Path) -> None:
    for distribution in ("lucebox-sm90", "mylab-sm90"):
        pack_data.install(tmp_path / "site", "sm_90", distribution=distribution)
    assert diagnosis(tmp_path, Survey((H100,), {})).install == "pip uninstall mylab-sm90"


def test_a_broken_pack_that_no_gpu_needs_is_mended_too(tmp_path: Path) -> None:
    pack_data.install(tmp_path / "site", "sm_75", content="{")
    pack_data.install(tmp_path / "site", "sim", content=pack_data.manifest("sim", version="0.0.9"))
    report = diagnosis(tmp_path)
    assert (report.ok, report.install) == (True, f'pip install "lucebox[sim]" && {reinstall("sm75")}')
    assert [words[-1] for words in report.commands] == ["lucebox[sim]", f"lucebox-sm75=={lucebox.__version__}"]
    assert all(pack.error for pack in report.packs)


def test_the_commands_name_the_index(tmp_path: Path) -> None:
    for distribution in ("lucebox-sm90", "mylab-sm90"):
        pack_data.install(tmp_path / "site", "sm_90", distribution=distribution)
    with pack_data.on_path(tmp_path / "site"):
        report = examine(Survey((H100, STRIX), {}), tmp_path, "https://example.org/lucebox")
    assert report.install == (
        'pip install --index-url https://example.org/lucebox "lucebox[gfx1151]" && pip uninstall mylab-sm90'
    )


def test_a_pack_for_no_gpu_here_is_shown(tmp_path: Path) -> None:
    pack_data.install(tmp_path / "site", "sm_75")
    report = diagnosis(tmp_path)
    assert report.packs[0].devices == ()
    assert report.ok


def test_a_device_that_cannot_be_opened_is_not_usable(tmp_path: Path) -> None:
    pack_data.install(tmp_path / "site", "sm_90")
    busy = dataclasses.replace(H100, free_bytes=None, error="cuDevicePrimaryCtxRetain failed: exclusive process")
    report = diagnosis(tmp_path, Survey((busy,), {}))
    assert (report.ok, report.devices[0].pack, report.devices[0].reason) == (False, None, busy.error)


def test_a_card_without_driver_is_found_and_its_pack_named(tmp_path: Path) -> None:
    machine_data.pci(tmp_path, "0000:01:00.0", "10de", "2204")
    report = diagnosis(tmp_path)
    (device,) = report.devices
    assert (device.device, device.name, device.architecture) == (None, "GeForce RTX 3090", "sm_86")
    assert device.reason == NO_CUDA
    assert (report.ok, report.install) == (False, 'pip install "lucebox[sm86]"')


def printed(report: Report, capsys: pytest.CaptureFixture[str]) -> str:
    print_report(report)
    return capsys.readouterr().out


def test_the_driver_comes_before_the_pack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine_data.pci(tmp_path, "0000:01:00.0", "10de", "2503")
    text = printed(diagnosis(tmp_path), capsys)
    lines = [line for line in text.splitlines() if line]
    assert lines[-3] == "Install the NVIDIA driver 525 or newer."
    assert lines[-2].startswith("Then install the packs")
    assert lines[-1] == '    pip install "lucebox[sm86]"'


def test_packs_that_are_not_on_pypi_come_from_where_lucebox_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = diagnosis(tmp_path, Survey((H100,), {}))
    for on_pypi in (False, True):
        monkeypatch.setattr("lucebox.cli.doctor.ON_PYPI", on_pypi)
        assert ("not on PyPI" in printed(report, capsys)) != on_pypi


def test_an_old_driver_comes_before_the_pack(tmp_path: Path) -> None:
    old = dataclasses.replace(H100, driver="CUDA 11.8", driver_generation="520")
    report = diagnosis(tmp_path, Survey((old,), {}))
    assert report.drivers_first == ("Update the NVIDIA driver to 525 or newer",)
    assert report.install == 'pip install "lucebox[sm90]"'


def test_a_pack_that_waits_for_a_driver_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack_data.install(tmp_path / "site", "sm_90")
    old = dataclasses.replace(H100, driver="CUDA 12.4", driver_generation="550")
    report = diagnosis(tmp_path, Survey((old,), {}))
    assert (report.packs[0].devices, report.packs[0].blocked, report.install) == ((), ("cuda:0",), None)
    text = printed(report, capsys)
    assert "in order; cuda:0 cannot use it yet" in text and "no GPU of this machine needs it" not in text
    assert text.endswith("\nUpdate the NVIDIA driver to 580 or newer.\n")


def test_the_report_says_which_code_a_driver_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack_data.install(tmp_path / "site", "sm_90", content=pack_data.with_older_code("sm_90"))
    old = dataclasses.replace(H100, driver="CUDA 12.4", driver_generation="550")
    for gpu, code in ((H100, "nvcc 13.0.88"), (old, "nvrtc 12.4.127")):
        report = diagnosis(tmp_path, Survey((gpu,), {}))
        (device,) = report.devices
        assert (report.ok, device.pack, device.code, report.drivers_first) == (True, "sm_90", code, ())
        assert code in printed(report, capsys)
    assert device.reason == (
        "pack sm_90 is made for sm_90; driver 580 or newer would load its code by nvcc, a little faster"
    )
    older = dataclasses.replace(H100, driver="CUDA 11.8", driver_generation="520")
    report = diagnosis(tmp_path, Survey((older,), {}))
    assert (report.ok, report.devices[0].code) == (False, None)
    assert report.drivers_first == ("Update the NVIDIA driver to 525 or newer",)


def test_a_driver_too_old_to_answer_is_updated(tmp_path: Path) -> None:
    machine_data.pci(tmp_path, "0000:01:00.0", "10de", "2330", driver="nvidia")
    machine_data.nvidia(tmp_path, "0000:01:00.0", "NVIDIA H100 80GB HBM3")
    assert diagnosis(tmp_path).drivers_first == ("Update the NVIDIA driver to 525 or newer",)


def test_a_pack_for_a_card_without_driver_waits_too(tmp_path: Path) -> None:
    pack_data.install(tmp_path / "site", "sm_86")
    machine_data.pci(tmp_path, "0000:01:00.0", "10de", "2204")
    assert diagnosis(tmp_path).packs[0].blocked == ("GeForce RTX 3090",)


def test_a_card_only_its_driver_knows_needs_the_driver(tmp_path: Path) -> None:
    machine_data.pci(tmp_path, "0000:01:00.0", "10de", "ffff")
    report = diagnosis(tmp_path)
    assert report.drivers_first == ("Install the NVIDIA driver 525 or newer",)
    assert report.install is None


def test_amd_without_the_hip_runtime(tmp_path: Path) -> None:
    machine_data.pci(tmp_path, "0000:41:00.0", "1002", "7550", driver="amdgpu")
    report = diagnosis(tmp_path)
    (step,) = report.drivers_first
    assert step.startswith("Install the HIP runtime of ROCm 6.0 or newer (libamdhip64), by your distribution or with ")
    assert report.install == 'pip install "lucebox[gfx1201]"'


def test_a_jetson_gets_its_driver_from_jetpack(tmp_path: Path) -> None:
    machine_data.write(tmp_path, "proc/device-tree/compatible", "nvidia,p3737\0nvidia,tegra234\0")
    for architecture, driver, generation, step in (
        ("sm_110", "CUDA 12.6", "560", "Update to JetPack 7 or newer, which contains an NVIDIA driver of 580 or newer"),
        ("sm_87", "CUDA 11.4", "470", "Update to JetPack 6 or newer, which contains an NVIDIA driver of 525 or newer"),
    ):
        old = dataclasses.replace(H100, architecture=architecture, driver=driver, driver_generation=generation)
        assert diagnosis(tmp_path, Survey((old,), {})).drivers_first == (step,)


def test_wsl_gets_its_driver_from_windows(tmp_path: Path) -> None:
    machine_data.write(tmp_path, "proc/sys/kernel/osrelease", "6.6.87.2-microsoft-standard-WSL2\n")
    old = dataclasses.replace(H100, driver="CUDA 11.8", driver_generation="520")
    (step,) = diagnosis(tmp_path, Survey((old,), {})).drivers_first
    assert step == "Update the NVIDIA driver to 525 or newer in Windows; WSL uses that one, so install none in Linux"


def test_a_card_in_other_hands_is_told(tmp_path: Path) -> None:
    machine_data.pci(tmp_path, "0000:01:00.0", "10de", "2204", driver="vfio-pci")
    assert diagnosis(tmp_path).devices[0].reason == f"the kernel gave it to vfio-pci, not to nvidia; {NO_CUDA}"


def test_a_driver_that_answers_without_its_device(tmp_path: Path) -> None:
    machine_data.pci(tmp_path, "0000:01:00.0", "10de", "2330", driver="nvidia")
    machine_data.nvidia(tmp_path, "0000:01:00.0", "NVIDIA H100 80GB HBM3")
    report = diagnosis(tmp_path, Survey((), {"hip": NO_HIP}))
    assert report.devices[0].reason == "there is no /dev/nvidiactl"
    assert report.drivers[0].kernel_version == "580.95.05"


def test_a_chip_no_pack_runs_on(tmp_path: Path) -> None:
    machine_data.pci(tmp_path, "0000:c4:00.0", "1002", "ffff", driver="amdgpu")
    machine_data.kfd(tmp_path, node=1, version=100300, location=0xC400)
    report = diagnosis(tmp_path)
    assert report.devices[0].name == "amd GPU 1002:ffff at 0000:c4:00.0"
    assert report.devices[0].reason == f"no pack runs on gfx1030; {NO_HIP}"
    assert (report.ok, report.install) == (False, None)


def test_a_pack_of_a_target_that_the_host_does_not_know(tmp_path: Path) -> None:
    pack_data.install(tmp_path / "site", "gfx1152")
    radeon = dataclasses.replace(STRIX, name="Radeon 860M", architecture="gfx1152")
    report = diagnosis(tmp_path, Survey((radeon,), {"cuda": NO_CUDA}))
    (device,) = report.devices
    assert (device.pack, device.install, report.install, report.ok) == ("gfx1152", None, None, True)
    machine_data.pci(tmp_path, "0000:c5:00.0", "1002", "1114", driver="amdgpu")
    machine_data.kfd(tmp_path, node=1, version=110502, location=0xC500)
    (device,) = diagnosis(tmp_path).devices
    assert (device.architecture, device.reason, device.install) == ("gfx1152", NO_HIP, None)


def test_a_variant_serves_its_target(tmp_path: Path) -> None:
    pack_data.install(tmp_path / "site", "sm_90_mine")
    report = diagnosis(tmp_path, Survey((H100,), {"hip": NO_HIP}))
    (device,), (pack,) = report.devices, report.packs
    assert (device.pack, device.install) == ("sm_90_mine", None)
    assert (pack.target, pack.distribution, pack.devices) == ("sm_90_mine", "lucebox-sm90-mine", ("cuda:0",))


def test_a_broken_variant_is_mended_by_its_owner(tmp_path: Path) -> None:
    pack_data.install(tmp_path / "site", "sm_90_mine", content="{")
    report = diagnosis(tmp_path, Survey((H100,), {}))
    assert report.devices[0].reason.endswith("install its wheel, or pip uninstall lucebox-sm90-mine")
    assert (report.ok, report.install) == (False, None)  # the released pack would not be used


def test_a_variant_that_waits_for_a_driver_says_so(tmp_path: Path) -> None:
    pack_data.install(tmp_path / "site", "sm_90_mine")
    pack_data.install(tmp_path / "site", "sm_90")
    old = dataclasses.replace(H100, driver="CUDA 12.4", driver_generation="550")
    report = diagnosis(tmp_path, Survey((old,), {}))
    assert {pack.target: pack.blocked for pack in report.packs} == {"sm_90_mine": ("cuda:0",), "sm_90": ()}
    assert report.drivers_first == ("Update the NVIDIA driver to 580 or newer",)


def test_a_card_of_an_unknown_target_waits_for_the_driver_of_its_pack(tmp_path: Path) -> None:
    pack_data.install(tmp_path / "site", "gfx1152", content=pack_data.manifest("gfx1152", min_driver="7.1"))
    machine_data.pci(tmp_path, "0000:c5:00.0", "1002", "1114", driver="amdgpu")
    machine_data.kfd(tmp_path, node=1, version=110502, location=0xC500)
    report = diagnosis(tmp_path)
    assert report.drivers_first[0].startswith("Install the HIP runtime of ROCm 7.1 or newer (libamdhip64), ")
    assert (report.packs[0].blocked, report.install) == (("amd GPU 1002:1114 at 0000:c5:00.0",), None)


def test_a_vendor_whose_driver_answers_is_not_looked_for_again(tmp_path: Path) -> None:
    machine_data.pci(tmp_path, "0000:01:00.0", "10de", "2330", driver="nvidia")
    machine_data.pci(tmp_path, "0000:41:00.0", "1002", "7550")
    report = diagnosis(tmp_path, Survey((H100,), {"hip": NO_HIP}))
    assert [device.device for device in report.devices] == ["cuda:0", None]


def test_the_printed_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack_data.install(tmp_path / "site", "gfx1151")
    pack_data.install(tmp_path / "site", "sm_75", content="{")
    print_report(diagnosis(tmp_path, Survey((H100, STRIX), {})))
    lines = capsys.readouterr().out.splitlines()
    assert lines[3:5] == ["cuda     CUDA 13.0", "hip      HIP 7.1"]
    assert lines[6].split() == ["device", "GPU", "architecture", "memory", "free", "pack", "code", "by", "why"]
    assert "79.2 GiB" in lines[7] and "sm_90, which is not installed" in lines[7]
    assert lines[8].startswith("hip:0") and lines[8].endswith("pack gfx1151 is made for gfx1151")
    assert lines[11].startswith("gfx1151") and lines[11].endswith("used by hip:0")
    assert lines[12].startswith("sm_75") and "is not JSON" in lines[12]
    assert lines[-1] == f'    pip install "lucebox[sm90]" && {reinstall("sm75")}'


def test_the_command_on_this_machine() -> None:
    command = [sys.executable, "-m", "lucebox", "doctor"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=60)
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["ok"] else 1)
    assert done.stderr == ""
    answers = survey()
    assert [driver["error"] for driver in report["drivers"]] == [answers.errors.get(name) for name in ("cuda", "hip")]
    text = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert text.returncode == done.returncode
    assert report["verdict"] in text.stdout


def with_drivers(folder: Path, site: Path, cuda: int, *args: str) -> str:
    """The output of the command with one sm_75 and that CUDA version in libcuda.so.1, none in libamdhip64.so.7."""
    script = (
        "import ctypes, sys\n"
        f"ctypes.CDLL('libcuda.so.1').standin_set(1, {cuda}, b'7.5')\n"
        "ctypes.CDLL('libamdhip64.so.7').standin_set(0, 70151831, b'gfx1151')\n"
        f"sys.path.insert(0, {str(site)!r})\n"
        "from lucebox.cli import main\n"
        f"print('exit', main({list(args)!r}))"
    )
    return test_device.run(folder, "-c", script)


def test_the_command_with_a_driver_and_its_pack(drivers: Path, tmp_path: Path) -> None:  # noqa: F811
    pack_data.install(tmp_path, "sm_75")
    text, code = with_drivers(drivers, tmp_path, 13000, "doctor", "--json").splitlines()
    report = json.loads(text)
    assert code == "exit 0"
    assert [driver["version"] for driver in report["drivers"]] == ["CUDA 13.0", "HIP 7.1, reports no device"]
    (device,) = report["devices"]
    assert (device["device"], device["architecture"], device["pack"]) == ("cuda:0", "sm_75", "sm_75")
    assert 0 < device["free_bytes"] <= device["total_bytes"]


def test_the_command_with_a_driver_too_old_for_the_pack(drivers: Path, tmp_path: Path) -> None:  # noqa: F811
    pack_data.install(tmp_path, "sm_75")
    text = with_drivers(drivers, tmp_path, 12040, "doctor")
    assert "pack sm_75 needs NVIDIA driver 580 or newer; the one of " in text
    assert "is of generation 550 (CUDA 12.4). Update it, then run `lucebox doctor`" in text
    assert text.endswith("\nUpdate the NVIDIA driver to 580 or newer.\nexit 1\n")


@pytest.mark.parametrize(
    "cuda, code", [(12010, "nvrtc 12.4.127"), (12040, "nvrtc 12.4.127"), (13000, "nvcc 13.0.88"), (11080, None)]
)
def test_the_command_takes_the_code_for_the_driver(
    drivers: Path,  # noqa: F811
    tmp_path: Path,
    cuda: int,
    code: str | None,
) -> None:
    pack_data.install(tmp_path, "sm_75", content=pack_data.with_older_code("sm_75"))
    text, status = with_drivers(drivers, tmp_path, cuda, "doctor", "--json").splitlines()
    report = json.loads(text)
    (device,) = report["devices"]
    assert (device["code"], status) == (code, "exit 0" if code else "exit 1")
    if code is None:
        assert "pack sm_75 needs NVIDIA driver 525 or newer; the one of " in device["reason"]
        assert "is of generation 520 (CUDA 11.8). Update it" in device["reason"]
        assert report["drivers_first"] == ["Update the NVIDIA driver to 525 or newer"]


def test_a_hip_runtime_that_pip_installed(drivers: Path, tmp_path: Path) -> None:  # noqa: F811
    package = tmp_path / "site" / "_rocm_sdk_core"
    (package / "lib").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    library = package / "lib" / "libamdhip64.so.7"
    shutil.copy(drivers / library.name, library)
    script = (
        "import ctypes, sys\n"
        f"sys.path.insert(0, {str(package.parent)!r})\n"
        "from lucebox.packs import driver_libraries\n"
        "from lucebox.packs.drivers import survey\n"
        "path = driver_libraries.load('hip')\n"
        "ctypes.CDLL(path).standin_set(1, 70151831, b'gfx1151')\n"
        "print(path, *(gpu.architecture for gpu in survey().devices))"
    )
    assert test_device.run(tmp_path, "-c", script).split() == [str(library), "gfx1151"]


def test_the_command_with_a_driver_and_no_pack(drivers: Path, tmp_path: Path) -> None:  # noqa: F811
    text = with_drivers(drivers, tmp_path, 13000, "doctor")
    assert text.endswith('    pip install "lucebox[sm75]"\nexit 1\n')
