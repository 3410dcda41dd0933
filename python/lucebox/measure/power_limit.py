"""Reads and sets the power limit of a GPU: NVML for NVIDIA, hwmon in /sys for AMD. Reading needs no privileges; setting
does. The old limit is restored at the end, even if this process is killed.

As a program (`python -m lucebox.measure.power_limit VENDOR PCI WATTS ROOT`), this module waits for end-of-file on stdin
and then sets the limit. It is the guard process that restores the limit of a killed parent.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lucebox.errors import InvalidRequestError, UnsupportedError
from lucebox.measure.energy import ROOT, Device, Nvml, open_nvml

__all__ = ["PowerLimit", "find_power_limit"]


@dataclass(frozen=True, slots=True)
class Named:
    """Identifies a device to its driver."""

    vendor: str
    pci: str


@dataclass(frozen=True, slots=True)
class PowerLimit:
    """The power limit of one device, in watts."""

    device: Named
    root: Path
    read: Callable[[], float]
    write: Callable[[float], bool]
    """Sets the limit; returns False if the driver denies it to this user."""
    lowest: float
    highest: float

    @contextmanager
    def held_at(self, watts: float) -> Iterator[None]:
        """Sets the limit, and restores the old one at the end or when this process dies.

        Raises:
            InvalidRequestError: the limit is out of the device's range.
            UnsupportedError: this user may not set it.
        """
        if not self.lowest <= watts <= self.highest:
            raise InvalidRequestError(
                f"a power limit of {watts:g} W: the device takes {self.lowest:g} to {self.highest:g} W"
            )
        before = self.read()
        module = [sys.executable, "-m", "lucebox.measure.power_limit"]
        guard = subprocess.Popen(
            [*module, self.device.vendor, self.device.pci, repr(before), str(self.root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must not reach it
        )
        assert guard.stdin is not None and guard.stdout is not None
        try:
            if guard.stdout.readline() != b"ready\n":
                raise UnsupportedError("the process that would restore the power limit did not start")
            if not self.write(watts):
                raise UnsupportedError(
                    "this user may not set the power limit: run as root, or set it yourself and leave out "
                    "--set-power-limit"
                )
            yield
        finally:
            guard.stdin.close()
            guard.wait()
            guard.stdout.close()


def find_power_limit(device: Device | None, root: Path = ROOT) -> PowerLimit | None:
    """The power limit of a device; None for the CPU, the simulator, and devices without a readable limit."""
    if device is None or not device.pci:
        return None
    named = Named(device.vendor, device.pci)
    if named.vendor == "cuda" and (nvml := open_nvml(named.pci)) is not None:
        return _nvidia(named, nvml, root)
    return _amd(named, root) if named.vendor == "hip" else None


def _nvidia(device: Named, nvml: Nvml, root: Path) -> PowerLimit | None:
    """In milliwatts."""

    def read() -> float:
        limit = ctypes.c_uint()
        if not nvml.call("nvmlDeviceGetPowerManagementLimit", limit):
            raise UnsupportedError("the driver does not report the power limit")
        return limit.value / 1000

    lowest, highest = ctypes.c_uint(), ctypes.c_uint()
    if not nvml.call("nvmlDeviceGetPowerManagementLimitConstraints", lowest, highest):
        return None
    return PowerLimit(
        device,
        root,
        read,
        lambda watts: nvml.send("nvmlDeviceSetPowerManagementLimit", ctypes.c_uint(round(watts * 1000))),
        lowest.value / 1000,
        highest.value / 1000,
    )


def _amd(device: Named, root: Path) -> PowerLimit | None:
    """In microwatts."""
    folders = sorted((root / "sys/bus/pci/devices" / device.pci.lower() / "hwmon").glob("hwmon*"))
    folder = next((folder for folder in folders if (folder / "power1_cap").exists()), None)
    if folder is None:
        return None

    def read(name: str = "power1_cap") -> float:
        return int((folder / name).read_text()) / 1e6

    def write(watts: float) -> bool:
        try:
            (folder / "power1_cap").write_text(f"{round(watts * 1e6)}\n")
        except PermissionError:
            return False
        return True

    return PowerLimit(device, root, read, write, read("power1_cap_min"), read("power1_cap_max"))


def main() -> None:
    vendor, pci, watts, root = sys.argv[1:]
    limit = find_power_limit(Named(vendor, pci), Path(root))
    if limit is None:
        sys.exit(1)
    print("ready", flush=True)
    sys.stdin.read()
    if limit.read() != float(watts):
        limit.write(float(watts))


if __name__ == "__main__":
    main()
