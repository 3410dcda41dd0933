"""Which pack serves a device, and which device a user names: the exact architecture first, then what the vendor
documents as compatible. Every refusal says what is missing and the line that mends it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lucebox.errors import InvalidRequestError, PackError
from lucebox.packs.installed import BrokenPack, Pack, Packs, install_line
from lucebox.targets import NAMES, serving

__all__ = ["Choice", "Device", "DeviceSpec", "Selection", "best_target", "choose", "parse_device", "select"]

# What min_driver counts in.
DRIVERS = {"nvidia": "NVIDIA driver", "amd": "HIP runtime"}


class Device(Protocol):
    """What a driver says of a device; _engine.gpu.DeviceInfo is one."""

    @property
    def vendor(self) -> str: ...
    @property
    def index(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def architecture(self) -> str: ...
    @property
    def driver(self) -> str: ...
    @property
    def driver_generation(self) -> str: ...


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device as a user writes it."""

    backend: str
    """auto, cpu, cuda, hip or sim."""
    index: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """The pack of a device and why it is this one."""

    pack: Pack
    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    """The device and pack that a user's word came to."""

    device: str
    """cpu, or backend and index: cuda:0."""
    info: Device | None
    """What the driver says of the device; None for the CPU."""
    choice: Choice | None
    report: tuple[str, ...]
    """One line per device that was passed over, then one on what was taken."""


def parse_device(text: str) -> DeviceSpec:
    """The device that `text` names: auto, cpu, cuda, cuda:1, hip:0, sim.

    Raises:
        InvalidRequestError: it is none of these.
    """
    match = re.fullmatch(r"(auto|cpu)|(cuda|hip|sim)(?::(\d{1,4}))?", text)
    if not match:
        raise InvalidRequestError(f'device must be auto, cpu, cuda:N, hip:N or sim (N counts from 0), got "{text}"')
    return DeviceSpec(match[1] or match[2], int(match[3] or 0))


def choose(device: Device, packs: Packs) -> Choice:
    """The pack that this device runs.

    Raises:
        PackError: there is none, it is broken, or the driver is too old for it.
    """
    installed = {pack.target: pack for pack in packs.installed}
    for target in serving(device.architecture):  # best first
        pack = installed.get(target.name)
        if isinstance(pack, BrokenPack):
            raise PackError(pack.error)
        if pack is not None:
            _check_driver(device, pack)
            return Choice(pack, _reason(device, pack))
    raise PackError(_no_pack(device, packs))


def best_target(architecture: str) -> str | None:
    """The target whose pack an architecture runs best, its own where there is one; None where none runs."""
    return next((target.name for target in serving(architecture)), None)


def select(spec: DeviceSpec, devices: Sequence[Device], packs: Packs) -> Selection:
    """The device that `spec` names among `devices`, and its pack. Only `auto` may end at the CPU, and says why.

    Raises:
        PackError: the device named has no usable pack, or there is no such device.
    """
    if spec.backend == "cpu":
        return Selection("cpu", None, None, ("cpu: as asked for",))
    if spec.backend != "auto":
        named = f"{spec.backend}:{spec.index}"
        for device in devices:
            if (device.vendor, device.index) == (spec.backend, spec.index):
                choice = choose(device, packs)
                return Selection(named, device, choice, (f"{named}: {choice.reason}",))
        there = ", ".join(_label(device) for device in devices) or "none"
        raise PackError(f"there is no device {named}; devices found: {there}. `lucebox doctor` says more")
    passed = []
    for device in devices:
        if device.vendor == "sim":  # a test bench, never a better choice than the CPU
            continue
        try:
            choice = choose(device, packs)
        except PackError as error:
            passed.append(f"{_label(device)}: {error}")
        else:
            return Selection(_label(device), device, choice, (*passed, f"{_label(device)}: {choice.reason}"))
    return Selection("cpu", None, None, (*passed, "cpu: no GPU has a usable pack" if passed else "cpu: no GPU found"))


def _label(device: Device) -> str:
    return f"{device.vendor}:{device.index}"


def _reason(device: Device, pack: Pack) -> str:
    if pack.target == device.architecture:
        return f"pack {pack.target} is made for {device.architecture}"
    best = best_target(device.architecture)
    better = f"; {best} is better: {install_line(best)}" if best and best != pack.target else ""
    return f"pack {pack.target} runs on {device.architecture} by the vendor's compatibility rule{better}"


def _no_pack(device: Device, packs: Packs) -> str:
    best = best_target(device.architecture)
    what = f"{device.name} ({device.architecture})"
    if best is None:
        return f"{what}: no pack runs on this chip; there are packs for {', '.join(NAMES)}"
    here = ", ".join(pack.target for pack in packs.usable) or "none"
    return f"{what} needs the pack {best}, which is not installed (installed: {here}); {install_line(best)}"


def _check_driver(device: Device, pack: Pack) -> None:
    least, found = pack.manifest.min_driver, device.driver_generation
    if pack.manifest.vendor == "sim" or _release(found) >= _release(least):
        return
    raise PackError(
        f"pack {pack.target} needs {DRIVERS[pack.manifest.vendor]} {least} or newer; the one of {device.name} is of "
        f"generation {found} ({device.driver}). Update it, then run `lucebox doctor`"
    )


def _release(text: str) -> tuple[int, ...]:
    """Numbers of a version, to compare: "580" or "6.0"."""
    return tuple(int(part) for part in re.findall(r"\d+", text))
