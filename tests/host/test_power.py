"""Power limits on fake /sys trees and on a fake NVML; sweeps with a model whose energy is faked."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lucebox.cli import main
from lucebox.errors import FormatError, InvalidRequestError, UnsupportedError
from lucebox.measure import power_sweep
from lucebox.measure.power_limit import Named, find_power_limit
from lucebox.measure.power_sweep import PowerPoint, load_points, save_points

PCI = "0000:0c:00.0"
AMD = Named("hip", PCI)
POINT = PowerPoint("2026-01-02", "m", "d", "tg64", 200.0, 180.5, 55.25, 0.306)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A GPU with a limit of 250 W and a range of 100 to 300 W."""
    folder = cap(tmp_path).parent
    folder.mkdir(parents=True)
    for name, watts in {"power1_cap": 250, "power1_cap_min": 100, "power1_cap_max": 300}.items():
        (folder / name).write_text(f"{watts * 10**6}\n")
    return tmp_path


def cap(root: Path) -> Path:
    return root / "sys/bus/pci/devices" / PCI / "hwmon/hwmon2/power1_cap"


def test_a_limit_is_set_and_given_back(root: Path) -> None:
    limit = find_power_limit(AMD, root)
    assert limit is not None
    assert (limit.read(), limit.lowest, limit.highest) == (250, 100, 300)
    with limit.held_at(150.5):
        assert limit.read() == 150.5
    assert limit.read() == 250


def test_an_error_gives_it_back(root: Path) -> None:
    limit = find_power_limit(AMD, root)
    assert limit is not None
    with pytest.raises(ZeroDivisionError), limit.held_at(120):
        raise ZeroDivisionError
    assert limit.read() == 250


def test_a_killed_process_gives_it_back(root: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from lucebox.measure.power_limit import Named, find_power_limit\n"
        f"with find_power_limit(Named('hip', {PCI!r}), Path(sys.argv[1])).held_at(110):\n"
        "    print('held', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(root)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    assert cap(root).read_text() == "110000000\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    for _ in range(1200):
        if cap(root).read_text() == "250000000\n":
            return
        time.sleep(0.05)
    raise AssertionError(f"the limit stayed at {cap(root).read_text()}")


@pytest.mark.parametrize("watts", [99, 301])
def test_limits_the_device_does_not_take(root: Path, watts: float) -> None:
    limit = find_power_limit(AMD, root)
    assert limit is not None
    with pytest.raises(InvalidRequestError, match="100 to 300 W"), limit.held_at(watts):
        pass
    assert limit.read() == 250


@pytest.mark.parametrize("device", [None, Named("sim", ""), Named("hip", "0000:ff:00.0")])
def test_what_has_no_limit(root: Path, device: Named | None) -> None:
    assert find_power_limit(device, root) is None


@dataclass
class Nvml:
    """A fake libnvidia-ml that denies setting the limit."""

    limit: int = 350_000

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, pci: bytes, handle: Any) -> int:
        return 0

    def nvmlDeviceGetPowerManagementLimit(self, handle: Any, value: Any) -> int:
        value._obj.value = self.limit
        return 0

    def nvmlDeviceGetPowerManagementLimitConstraints(self, handle: Any, lowest: Any, highest: Any) -> int:
        lowest._obj.value, highest._obj.value = 100_000, 400_000
        return 0

    def nvmlDeviceSetPowerManagementLimit(self, handle: Any, value: Any) -> int:
        return 4


def test_nvidia_in_milliwatts_and_without_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Nvml())
    limit = find_power_limit(Named("cuda", PCI))
    assert limit is not None
    assert (limit.read(), limit.lowest, limit.highest) == (350, 100, 400)
    assert not limit.write(200)


def test_the_guard_must_be_there_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard process finds no NVML here, so the limit is not set: nothing could restore it."""
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Nvml())
    limit = find_power_limit(Named("cuda", PCI))
    assert limit is not None
    with pytest.raises(UnsupportedError, match="did not start"), limit.held_at(200):
        pass


def test_rows_are_added_to_a_file(tmp_path: Path) -> None:
    file = tmp_path / "sweep.csv"
    other = PowerPoint("2026-01-03", "m", "d", "tg64", 150.0, 149.0, 50.0, 0.33)
    save_points(file, [POINT])
    save_points(file, [other])
    assert load_points(file) == [other, POINT]
    file.write_text("a,b\n1,2\n")
    with pytest.raises(FormatError, match="line 2"):
        load_points(file)


@pytest.mark.slow  # 5 s
def test_the_command_measures_at_each_limit(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real model decodes on the CPU; the limit is in the fake tree, the energy is 2 J per run."""
    limits_seen = []

    def measured(llm: Any, **options: Any) -> Any:
        limits_seen.append(int(cap(root).read_text()) / 1e6)
        report = measure(llm, **options)
        test = SimpleNamespace(joules=2.0, tok_j=32.0, seconds=(0.5,), label="tg8", tok_s=report.measurements[0].tok_s)
        return SimpleNamespace(measurements=(test,), model=report.model, device_name=report.device_name)

    measure = power_sweep.measure
    monkeypatch.setattr(power_sweep, "measure", measured)
    monkeypatch.setattr(power_sweep, "find_power_limit", lambda device: find_power_limit(AMD, root))
    file, plot = tmp_path / "sweep.csv", tmp_path / "sweep.png"
    words = ["bench", "tiny-hybrid", "-n", "8", "-r", "1", "--device", "cpu", "--power-sweep", str(file)]
    assert main([*words, "--set-power-limit", "200,120", "--plot", str(plot)]) == 0
    assert limits_seen == [200, 120]
    assert [(point.limit_w, point.watts) for point in load_points(file)] == [(120, 4.0), (200, 4.0)]
    assert "tok/J" in capsys.readouterr().out
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert cap(root).read_text() == "250000000\n"


def test_a_target_without_a_limit_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "tiny-hybrid", "-n", "8", "--device", "cpu", "--power-sweep", str(tmp_path / "x.csv")]
    assert main(words) != 0
    assert "no power limit can be read on cpu" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["bench", "tiny-hybrid", "--set-power-limit", "100"])
    assert "is for --power-sweep" in capsys.readouterr().err
