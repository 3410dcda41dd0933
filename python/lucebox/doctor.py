"""`examine`: the GPUs of this machine, the packs that serve them, the obstacles and the command to run.

Asks the driver libraries through the engine, and reads /proc and /sys where none answers. Needs no vendor tool.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import lucebox
from lucebox import _engine, machine, packs
from lucebox.errors import DeviceError, PackError
from lucebox.machine import processor_name

__all__ = ["DeviceState", "DriverState", "Gpu", "Host", "PackState", "Report", "Survey", "examine", "survey"]

VENDORS = {"cuda": "nvidia", "hip": "amd"}
DRIVER_NAMES = {"cuda": "NVIDIA driver", "hip": "AMD driver (ROCm runtime)"}
KERNEL_DRIVERS = {"nvidia": "nvidia", "amd": "amdgpu"}
ON_CPU = "Models run on the CPU."


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device reported by its driver."""

    vendor: str
    """cuda or hip."""
    index: int
    name: str
    architecture: str
    driver: str
    driver_generation: str
    total_bytes: int
    free_bytes: int | None
    error: str | None = None
    """Why the device cannot be opened."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The answers of the driver libraries."""

    devices: tuple[Gpu, ...]
    errors: Mapping[str, str]
    """By back end (cuda, hip): why it did not answer."""


@dataclass(frozen=True, slots=True)
class Host:
    """The machine around the GPUs."""

    lucebox: str
    python: str
    os: str
    cpu: str
    isa: str
    memory_bytes: int | None
    wsl: bool


@dataclass(frozen=True, slots=True)
class DriverState:
    """The driver library of one back end."""

    backend: str
    version: str | None
    """Version reported by the library: "CUDA 13.0"."""
    kernel_version: str | None
    """Version of the kernel module, where known."""
    error: str | None
    """None: the library answers."""


@dataclass(frozen=True, slots=True)
class DeviceState:
    """One GPU and whether lucebox can use it."""

    device: str | None
    """The device's name for users: cuda:0; None where the driver does not answer."""
    name: str
    architecture: str | None
    total_bytes: int | None
    free_bytes: int | None
    pack: str | None
    """The pack that serves it."""
    reason: str
    """Why this pack, or why none and what to do."""
    install: str | None
    """The target whose pack is missing."""


@dataclass(frozen=True, slots=True)
class PackState:
    """One installed pack."""

    target: str
    """The pack's name: its target, and its variant if it is one."""
    distribution: str
    version: str | None
    n_kernels: int | None
    bytes: int | None
    devices: tuple[str, ...]
    error: str | None
    """None: manifest and hashes are in order."""


@dataclass(frozen=True, slots=True)
class Report:
    """The whole report."""

    host: Host
    drivers: tuple[DriverState, ...]
    devices: tuple[DeviceState, ...]
    packs: tuple[PackState, ...]
    install: str | None
    """The pip command for this machine; None where no pack is missing."""
    verdict: str
    ok: bool
    """A GPU is usable, or there is none."""


def survey() -> Survey:
    """Asks every driver library."""
    found: list[Gpu] = []
    errors = {}
    for backend in VENDORS:
        try:
            found += map(_gpu, _engine.gpu.devices(backend))
        except DeviceError as error:
            errors[backend] = str(error)
    return Survey(tuple(found), errors)


def _gpu(info: _engine.gpu.DeviceInfo) -> Gpu:
    free, error = None, None
    try:
        free, _ = _engine.gpu.Device(info.vendor, info.index).memory()
    except DeviceError as reason:
        error = str(reason)
    return Gpu(
        vendor=info.vendor,
        index=info.index,
        name=info.name,
        architecture=info.architecture,
        driver=info.driver,
        driver_generation=info.driver_generation,
        total_bytes=info.memory_bytes,
        free_bytes=free,
        error=error,
    )


def examine(drivers: Survey | None = None, root: Path = machine.ROOT) -> Report:
    """The report of this machine; `root` contains the /proc, /sys and /etc to read."""
    answers = drivers or survey()
    installed = _check_files(packs.find())
    devices = [_with_driver(device, installed) for device in answers.devices]
    answering = {VENDORS[device.vendor] for device in answers.devices}
    devices += [
        _without_driver(gpu, answers.errors, installed)
        for gpu in machine.find_gpus(root)
        if gpu.vendor not in answering
    ]
    missing = list(dict.fromkeys(device.install for device in devices if device.install))
    ok, verdict = _verdict(devices, machine.is_wsl(root))
    return Report(
        host=_host(root),
        drivers=tuple(_driver(backend, answers, root) for backend in VENDORS),
        devices=tuple(devices),
        packs=_pack_states(installed, devices),
        install=f'pip install "lucebox[{",".join(map(packs.extra, missing))}]"' if missing else None,
        verdict=verdict,
        ok=ok,
    )


def _check_files(found: packs.Packs) -> packs.Packs:
    """The packs, with those that have damaged files moved to the broken ones."""
    usable, broken = [], list(found.broken)
    for pack in found.usable:
        try:
            pack.load()
        except PackError as error:
            broken.append(packs.BrokenPack(pack.name, pack.distribution, str(error), pack.installed_ns))
        else:
            usable.append(pack)
    return packs.Packs(tuple(usable), tuple(broken))


def _with_driver(device: Gpu, installed: packs.Packs) -> DeviceState:
    try:
        choice = packs.choose(device, installed)
        pack, reason = choice.pack.name, choice.reason
    except PackError as error:
        pack, reason = None, str(error)
    if device.error:
        pack, reason = None, device.error
    return DeviceState(
        device=f"{device.vendor}:{device.index}",
        name=device.name,
        architecture=device.architecture,
        total_bytes=device.total_bytes,
        free_bytes=device.free_bytes,
        pack=pack,
        reason=reason,
        install=_missing_pack(device.architecture, installed),
    )


def _without_driver(gpu: machine.FoundGpu, errors: Mapping[str, str], installed: packs.Packs) -> DeviceState:
    """A GPU that the kernel lists but no driver library reports."""
    backend = next(backend for backend, vendor in VENDORS.items() if vendor == gpu.vendor)
    reason = errors.get(backend, f"the {DRIVER_NAMES[backend]} is installed but reports no device")
    if gpu.kernel_driver not in (None, KERNEL_DRIVERS[gpu.vendor]):
        reason = f"the kernel gave it to {gpu.kernel_driver}, not to {KERNEL_DRIVERS[gpu.vendor]}; {reason}"
    served = gpu.architecture and (packs.best_target(gpu.architecture) or packs.fitting(gpu.architecture, installed))
    if gpu.architecture and not served:
        reason = f"no pack runs on {gpu.architecture}; {reason}"
    return DeviceState(
        device=None,
        name=gpu.name or f"{gpu.vendor} GPU {gpu.pci_id} at {gpu.address}",
        architecture=gpu.architecture,
        total_bytes=None,
        free_bytes=None,
        pack=None,
        reason=reason,
        install=_missing_pack(gpu.architecture, installed),
    )


def _missing_pack(architecture: str | None, installed: packs.Packs) -> str | None:
    """The target whose pack to install for an architecture; None where it is installed."""
    target = packs.best_target(architecture) if architecture else None
    return None if target in {pack.target for pack in installed.installed} else target


def _pack_states(installed: packs.Packs, devices: Sequence[DeviceState]) -> tuple[PackState, ...]:
    states = [
        PackState(
            target=pack.name,
            distribution=pack.distribution,
            version=pack.manifest.version,
            n_kernels=len(pack.manifest.kernels),
            bytes=sum(file.bytes for file in pack.manifest.files),
            devices=tuple(device.device for device in devices if device.device and device.pack == pack.name),
            error=None,
        )
        for pack in installed.usable
    ]
    return (
        *states,
        *(PackState(pack.name, pack.distribution, None, None, None, (), pack.error) for pack in installed.broken),
    )


def _driver(backend: str, answers: Survey, root: Path) -> DriverState:
    version = next((device.driver for device in answers.devices if device.vendor == backend), None)
    kernel = machine.nvidia_driver(root) if backend == "cuda" else None
    return DriverState(backend, version, kernel, answers.errors.get(backend))


def _host(root: Path) -> Host:
    return Host(
        lucebox=lucebox.__version__,
        python=platform.python_version(),
        os=machine.os_name(root),
        cpu=processor_name(),
        isa=_engine.best_isa(),
        memory_bytes=machine.memory_bytes(root),
        wsl=machine.is_wsl(root),
    )


def _verdict(devices: Sequence[DeviceState], wsl: bool) -> tuple[bool, str]:
    ready = [device for device in devices if device.pack]
    if ready:
        names = " and ".join(f"{device.device} ({device.name})" for device in ready)
        return True, f"{names} ready; `lucebox selftest --device {ready[0].device}` checks every kernel."
    if devices:
        return False, f"No GPU of this machine is usable yet; the table has the reasons. {ON_CPU}"
    if wsl:
        return True, f"No GPU found; under WSL it comes with the GPU driver installed in Windows. {ON_CPU}"
    return True, f"No GPU found. {ON_CPU}"
