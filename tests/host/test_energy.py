"""Energy meters on fake /sys trees and on a fake NVML."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from lucebox.measure import energy
from lucebox.measure.energy import Counted, Energy, Meter, Sampled, find_meter

PCI = "0000:0c:00.0"


@dataclass(frozen=True)
class Device:
    vendor: str
    pci: str = PCI


@dataclass
class Nvml:
    """A fake libnvidia-ml; calls named in `missing` fail."""

    missing: tuple[str, ...] = ()
    asked: list[bytes] = field(default_factory=list)

    def nvmlInit_v2(self) -> int:
        return 9 if "nvmlInit_v2" in self.missing else 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, pci: bytes, handle: Any) -> int:
        self.asked.append(pci)
        handle._obj.value = 7
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: ctypes.c_void_p, value: Any) -> int:
        return self._answer("nvmlDeviceGetTotalEnergyConsumption", handle, value, 123_456)

    def nvmlDeviceGetPowerUsage(self, handle: ctypes.c_void_p, value: Any) -> int:
        return self._answer("nvmlDeviceGetPowerUsage", handle, value, 98_500)

    def _answer(self, call: str, handle: ctypes.c_void_p, value: Any, number: int) -> int:
        assert handle.value == 7
        value._obj.value = number
        return 3 if call in self.missing else 0


def hwmon(root: Path, **files: int) -> Path:
    folder = root / "sys/bus/pci/devices" / PCI / "hwmon" / "hwmon3"
    folder.mkdir(parents=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")
    return folder


def source(meter: Meter | None) -> str | None:
    return None if meter is None else meter.source


def test_no_meter_for_what_has_none(tmp_path: Path) -> None:
    for device in (None, Device("sim"), Device("cuda", pci=""), Device("hip")):
        assert find_meter(device, tmp_path) is None


@pytest.mark.parametrize(
    "files, want",
    [
        ({"energy1_input": 5, "power1_average": 6}, "hwmon energy counter"),
        ({"power1_average": 6, "power1_input": 7}, "hwmon power samples"),
        ({"power1_input": 7}, "hwmon power samples"),
        ({"temp1_input": 7}, None),
    ],
)
def test_hwmon_files(tmp_path: Path, files: dict[str, int], want: str | None) -> None:
    hwmon(tmp_path, **files)
    assert source(find_meter(Device("hip", pci=PCI.upper()), tmp_path)) == want


def test_a_counter_counts_only_while_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = hwmon(tmp_path, energy1_input=1_000_000)
    meter = find_meter(Device("hip"), tmp_path)
    assert meter is not None
    monkeypatch.setattr(energy, "MIN_SECONDS", 0)
    sums = meter.energy()
    assert sums.joules is None  # nothing has moved
    for value in (3_500_000, 4_000_000):
        with sums:
            (folder / "energy1_input").write_text(str(value))
        (folder / "energy1_input").write_text(str(value + 250_000))  # not counted
    assert sums.joules == pytest.approx(2.5 + 0.25)


def test_one_time_too_short_to_tell_gives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "MIN_SECONDS", 0.05)
    readings = iter(range(100))
    sums = Counted(lambda: float(next(readings)))
    with sums:
        time.sleep(0.06)
    assert sums.joules == 1
    monkeypatch.setattr(energy, "MIN_SECONDS", 60)
    with sums:
        pass
    assert sums.joules is None


def test_power_is_integrated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "MIN_SECONDS", 0)
    sums: Energy = Sampled(lambda: 50.0)
    start = time.perf_counter()
    for _ in range(2):
        with sums:
            time.sleep(0.06)
    took = time.perf_counter() - start
    assert sums.joules is not None
    assert 50 * 0.12 * 0.99 < sums.joules <= 50 * took


@pytest.mark.parametrize(
    "missing, want",
    [
        ((), "NVML energy counter"),
        (("nvmlDeviceGetTotalEnergyConsumption",), "NVML power samples"),
        (("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"), None),
        (("nvmlInit_v2",), None),
    ],
)
def test_nvml(monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...], want: str | None) -> None:
    nvml = Nvml(missing)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: nvml)
    assert source(find_meter(Device("cuda"))) == want
    if "nvmlInit_v2" not in missing:
        assert nvml.asked == [PCI.encode()]


def test_nvml_counts_thousandths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Nvml())
    meter = find_meter(Device("cuda"))
    assert meter is not None and meter._joules is not None
    assert meter._joules() == 123.456


def test_a_machine_without_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", no_library)
    assert find_meter(Device("cuda")) is None
