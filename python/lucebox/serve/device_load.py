"""Reads utilisation and power of the device: NVML for NVIDIA, /sys for AMD, /proc/stat for the CPU.

A value that cannot be read is None.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lucebox.measure.energy import ROOT, Device, Nvml, open_nvml

__all__ = ["DeviceLoad", "load_reader"]


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """Load of the device at one moment."""

    busy: float | None
    """Utilisation, 0 to 1."""
    watts: float | None


Reader = Callable[[], DeviceLoad]


def load_reader(device: Device | None, root: Path = ROOT) -> Reader:
    """A function that reads the load of a device, or of all CPUs for None. Cheap enough to call once a second."""
    if device is None:
        return _cpu(root)
    if device.vendor == "cuda" and (nvml := open_nvml(device.pci)) is not None:
        return _nvidia(nvml)
    if device.vendor == "hip":
        return _amd(root / "sys/bus/pci/devices" / device.pci.lower())
    return lambda: DeviceLoad(None, None)


def _nvidia(nvml: Nvml) -> Reader:
    class Utilization(ctypes.Structure):
        _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]

    share, milliwatts = Utilization(), ctypes.c_uint()

    def read() -> DeviceLoad:
        has_share = nvml.call("nvmlDeviceGetUtilizationRates", share)
        has_power = nvml.call("nvmlDeviceGetPowerUsage", milliwatts)
        return DeviceLoad(share.gpu / 100 if has_share else None, milliwatts.value / 1000 if has_power else None)

    return read


def _amd(folder: Path) -> Reader:
    def first(pattern: str) -> float | None:
        for file in sorted(folder.glob(pattern)):
            try:
                return float(file.read_text())
            except (OSError, ValueError):
                continue
        return None

    def read() -> DeviceLoad:
        percent = first("gpu_busy_percent")
        microwatts = first("hwmon/hwmon*/power1_average") or first("hwmon/hwmon*/power1_input")
        return DeviceLoad(None if percent is None else percent / 100, microwatts and microwatts / 1e6)

    return read


def _cpu(root: Path) -> Reader:
    """Utilisation of all CPUs since the previous call."""

    def times() -> tuple[int, int] | None:
        try:
            fields = [int(word) for word in (root / "proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        except (OSError, ValueError):
            return None
        return sum(fields), fields[3] + fields[4]  # idle + iowait

    before = times()

    def read() -> DeviceLoad:
        nonlocal before
        last, before = before, times()
        if last is None or before is None or before[0] == last[0]:
            return DeviceLoad(None, None)
        return DeviceLoad(1 - (before[1] - last[1]) / (before[0] - last[0]), None)

    return read
