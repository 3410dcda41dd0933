"""Measures GPU energy through the driver: NVML for NVIDIA, hwmon in /sys for AMD. Reads an energy counter if there is
one, else integrates sampled power. Needs no vendor package; without either source there is no meter."""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol

__all__ = ["ROOT", "Device", "Energy", "Meter", "Nvml", "find_meter", "open_nvml"]

ROOT = Path("/")
SAMPLE_S = 0.02
# Counters update every 20 to 100 ms, so each end of an interval is uncertain by that much.
MIN_SECONDS = 0.5


class Device(Protocol):
    """Identifies a device to its driver; _engine.gpu.DeviceInfo is one."""

    @property
    def vendor(self) -> str: ...
    @property
    def pci(self) -> str: ...


class Meter:
    """The energy meter of one device."""

    def __init__(self, source: str, *, joules: Callable[[], float] | None, watts: Callable[[], float] | None) -> None:
        self.source = source
        """The counter: "NVML energy counter"."""
        self._joules, self._watts = joules, watts

    @property
    def counter(self) -> Callable[[], float] | None:
        """Reads the energy counter in joules; raises OSError if that fails. None if there is only power to sample."""
        return self._joules

    def energy(self) -> Energy:
        """A new measurement."""
        if self._joules is not None:
            return Counted(self._joules)
        assert self._watts is not None  # a meter has one of the two
        return Sampled(self._watts)


class Energy:
    """Sums the energy of the intervals in which it was entered: `with energy: work()`."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._shortest = math.inf
        self._entered = 0.0

    @property
    def joules(self) -> float | None:
        """None if an interval was too short, or the counter did not advance."""
        return self._sum if self._shortest >= MIN_SECONDS and self._sum > 0 else None

    def __enter__(self) -> None:
        self._begin()
        self._entered = time.perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shortest = min(self._shortest, time.perf_counter() - self._entered)
        self._sum += self._end()

    def _begin(self) -> None:
        raise NotImplementedError

    def _end(self) -> float:
        raise NotImplementedError


class Counted(Energy):
    """From an energy counter."""

    def __init__(self, read: Callable[[], float]) -> None:
        super().__init__()
        self._read = read
        self._before = 0.0

    def _begin(self) -> None:
        self._before = self._read()

    def _end(self) -> float:
        return self._read() - self._before


class Sampled(Energy):
    """From power, which a thread samples; integrated by the trapezoidal rule."""

    def __init__(self, read: Callable[[], float]) -> None:
        super().__init__()
        self._read = read
        self._readings: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def _begin(self) -> None:
        self._readings = []
        self._stop.clear()
        self._sample()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _end(self) -> float:
        assert self._thread is not None
        self._stop.set()
        self._thread.join()
        self._sample()
        pairs = zip(self._readings, self._readings[1:], strict=False)
        return sum((t1 - t0) * (w0 + w1) / 2 for (t0, w0), (t1, w1) in pairs)

    def _sample(self) -> None:
        self._readings.append((time.perf_counter(), self._read()))

    def _work(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self._sample()


def find_meter(device: Device | None, root: Path = ROOT) -> Meter | None:
    """The meter of a device; None for the CPU, the simulator, and devices without a readable counter."""
    if device is None or not device.pci:
        return None
    if device.vendor == "cuda":
        return _nvml(device.pci)
    return _hwmon(device.pci, root) if device.vendor == "hip" else None


class Nvml:
    """One device in NVIDIA's management library."""

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._library, self._handle = library, handle

    def call(self, name: str, *results: ctypes.Structure | ctypes.c_ulonglong | ctypes.c_uint) -> bool:
        """Fills in the results. Returns False if the call fails."""
        return not getattr(self._library, name)(self._handle, *map(ctypes.byref, results))

    def send(self, name: str, value: ctypes.c_uint) -> bool:
        """Returns False if the device refuses the value."""
        return not getattr(self._library, name)(self._handle, value)


def open_nvml(pci: str) -> Nvml | None:
    """Opens NVML, which comes with the driver; None without it. NVML stays initialised until the process ends."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    handle = ctypes.c_void_p()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByPciBusId_v2(pci.encode(), ctypes.byref(handle)):
        return None
    return Nvml(library, handle)


def _nvml(pci: str) -> Meter | None:
    nvml = open_nvml(pci)
    if nvml is None:
        return None

    def reader(name: str, number: ctypes.c_ulonglong | ctypes.c_uint) -> Callable[[], float] | None:
        """Makes a function that reads a counter in thousandths of its unit; None if the device does not support the
        call."""

        def read() -> float:
            if not nvml.call(name, number):
                raise OSError(f"{name} failed")
            return number.value / 1000

        try:
            read()
        except OSError:
            return None
        return read

    joules = reader("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong())
    if joules is not None:
        return Meter("NVML energy counter", joules=joules, watts=None)
    watts = reader("nvmlDeviceGetPowerUsage", ctypes.c_uint())
    return None if watts is None else Meter("NVML power samples", joules=None, watts=watts)


def _hwmon(pci: str, root: Path) -> Meter | None:
    """Reads counters in microjoules or microwatts."""

    def reader(name: str) -> Callable[[], float] | None:
        for file in sorted((root / "sys/bus/pci/devices" / pci.lower() / "hwmon").glob(f"hwmon*/{name}")):
            try:
                int(file.read_text())
            except (OSError, ValueError):
                continue
            return lambda: int(file.read_text()) / 1e6
        return None

    joules = reader("energy1_input")
    if joules is not None:
        return Meter("hwmon energy counter", joules=joules, watts=None)
    watts = reader("power1_average") or reader("power1_input")
    return None if watts is None else Meter("hwmon power samples", joules=None, watts=watts)
