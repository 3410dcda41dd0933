"""Chooses the device that a user names and the pack that serves it: the pack of the exact architecture first, then one
that the vendor documents as compatible. Every refusal says what is missing and the command that installs it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lucebox.errors import InvalidRequestError, PackError
from lucebox.packs.installed import BrokenPack, Pack, Packs, install_command
from lucebox.targets import NAMES, fits, serving

__all__ = ["Choice", "Device", "DeviceSpec", "Selection", "best_target", "choose", "fitting", "parse_device", "select"]

# By vendor: the software that min_driver is a version of.
DRIVERS = {"nvidia": "NVIDIA driver", "amd": "HIP runtime"}


class Device(Protocol):
    """A driver's description of a device; _engine.gpu.DeviceInfo is one."""

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
    """A device as the user wrote it."""

    backend: str
    """auto, cpu, cuda, hip or sim."""
    index: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """The pack of a device, and the reason for it."""

    pack: Pack
    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen device and pack."""

    device: str
    """cpu, or backend and index: cuda:0."""
    info: Device | None
    """The driver's description; None for the CPU."""
    choice: Choice | None
    report: tuple[str, ...]
    """One line per rejected device, then one for the choice."""


def parse_device(text: str) -> DeviceSpec:
    """Parses auto, cpu, cuda, cuda:1, hip:0 or sim.

    Raises:
        InvalidRequestError: not a device name.
    """
    match = re.fullmatch(r"(auto|cpu)|(cuda|hip|sim)(?::(\d{1,4}))?", text)
    if not match:
        raise InvalidRequestError(f'device must be auto, cpu, cuda:N, hip:N or sim (N counts from 0), got "{text}"')
    return DeviceSpec(match[1] or match[2], int(match[3] or 0))


def choose(device: Device, packs: Packs) -> Choice:
    """The best installed pack for a device.

    Raises:
        PackError: there is none, it is broken, or the driver is too old for it.
    """
    for pack in fitting(device.architecture, packs):
        if isinstance(pack, BrokenPack):
            raise PackError(pack.error)
        _check_driver(device, pack)
        return Choice(pack, _reason(device, pack))
    raise PackError(_no_pack(device, packs))


def fitting(architecture: str, packs: Packs) -> tuple[Pack | BrokenPack, ...]:
    """The installed packs whose code runs on a chip of this architecture, best first: its own, then the nearest older
    ones. Their manifests decide, so a pack of a target that this lucebox does not know counts as well."""
    found = [pack for pack in packs.installed if fits(pack.architecture, architecture)]
    return tuple(sorted(found, key=lambda pack: _release(pack.architecture), reverse=True))


def best_target(architecture: str) -> str | None:
    """The target whose pack suits an architecture best: its own, else a compatible one; None without any."""
    return next((target.name for target in serving(architecture)), None)


def select(spec: DeviceSpec, devices: Sequence[Device], packs: Packs) -> Selection:
    """The device among `devices` that `spec` names, and its pack. Only `auto` may fall back to the CPU; the report says
    why.

    Raises:
        PackError: no such device, or no usable pack for it.
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
        if device.vendor == "sim":  # for tests; never better than the CPU
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
    if fits(pack.architecture, device.architecture) == "exact":
        return f"pack {pack.target} is made for {device.architecture}"
    best = best_target(device.architecture)
    better = f"; {best} is better: {install_command(best)}" if best and best != pack.target else ""
    return f"pack {pack.target} runs on {device.architecture} by the vendor's compatibility rule{better}"


def _no_pack(device: Device, packs: Packs) -> str:
    best = best_target(device.architecture)
    what = f"{device.name} ({device.architecture})"
    if best is None:
        return f"{what}: no pack runs on this chip; there are packs for {', '.join(NAMES)}"
    here = ", ".join(pack.target for pack in packs.usable) or "none"
    return f"{what} needs the pack {best}, which is not installed (installed: {here}); {install_command(best)}"


def _check_driver(device: Device, pack: Pack) -> None:
    minimum, found = pack.manifest.min_driver, device.driver_generation
    if pack.manifest.vendor == "sim" or _release(found) >= _release(minimum):
        return
    raise PackError(
        f"pack {pack.target} needs {DRIVERS[pack.manifest.vendor]} {minimum} or newer; the one of {device.name} is of "
        f"generation {found} ({device.driver}). Update it, then run `lucebox doctor`"
    )


def _release(text: str) -> tuple[int, ...]:
    """A version ("580", "6.0") as comparable numbers."""
    return tuple(int(part) for part in re.findall(r"\d+", text))
