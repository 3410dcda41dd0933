"""Resolves the device that a user names, and chooses its pack: first the exact architecture, then one that the vendor
documents as compatible. Every error says what is missing and which command installs it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lucebox.errors import InvalidRequestError, PackError
from lucebox.packs.installed import BrokenPack, Pack, Packs, install_advice
from lucebox.packs.manifest import Generation, Manifest, release
from lucebox.packs.targets import NAMES, find, fits, serving

__all__ = [
    "Choice",
    "Device",
    "DeviceSpec",
    "Selection",
    "best_installed",
    "best_target",
    "choose",
    "fitting",
    "is_at_least",
    "min_driver",
    "parse_device",
    "parse_devices",
    "select",
]

# Vendor -> the software to which the version min_driver refers.
DRIVERS = {"nvidia": "NVIDIA driver", "amd": "HIP runtime"}


class Device(Protocol):
    """A device as its driver reports it; implemented by _engine.gpu.DeviceInfo."""

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
    code: Generation
    """The pack's newest code generation that the device's driver can load."""
    reason: str


@dataclass(frozen=True, slots=True)
class Selection:
    device: str
    """cpu, or backend and index: cuda:0."""
    info: Device | None
    """The device as its driver reports it; None for the CPU."""
    choice: Choice | None
    report: tuple[str, ...]
    """One line per rejected device, then one for the choice."""
    unused: tuple[str, ...] = ()
    """One line per GPU that could be faster: it has no usable pack, or a better pack exists. Says what to do."""


def parse_device(text: str) -> DeviceSpec:
    """Parses auto, cpu, cuda, cuda:1, hip:0 or sim, in any case.

    Raises:
        InvalidRequestError: not a device name.
    """
    match = re.fullmatch(r"(auto|cpu)|(cuda|hip|sim)(?::(\d{1,4}))?", text.lower())
    if not match:
        raise InvalidRequestError(f'device must be auto, cpu, cuda:N, hip:N or sim:N (N counts from 0), got "{text}"')
    return DeviceSpec(match[1] or match[2], int(match[3] or 0))


def parse_devices(text: str) -> tuple[DeviceSpec, ...]:
    """Parses one device, or several GPUs: cuda:0,cuda:1, or of two vendors, cuda:0,hip:0.

    Raises:
        InvalidRequestError: not a device name, a device twice, or devices that no model can share.
    """
    specs = tuple(parse_device(one.strip()) for one in text.split(","))
    if len(specs) == 1:
        return specs
    for spec in specs:
        if spec.backend in ("auto", "cpu"):
            raise InvalidRequestError(
                f'several devices are GPUs by their names, as cuda:0,cuda:1; "{spec.backend}" in "{text}" is none'
            )
        if specs.count(spec) > 1:
            raise InvalidRequestError(f'"{text}" names {spec.backend}:{spec.index} twice; name each device once')
    return specs


def choose(device: Device, packs: Packs, name: str | None = None) -> Choice:
    """The best installed pack for a device, or the pack called `name` ("sm_86_laptop").

    Raises:
        PackError: there is none, it is broken, or the driver is too old for it.
    """
    candidates = fitting(device.architecture, packs)
    pack = next((pack for pack in candidates if name in (None, pack.name)), None)
    if pack is None:
        raise PackError(_no_pack(device, packs) if name is None else _no_such_pack(device, packs, name))
    if isinstance(pack, BrokenPack):
        raise PackError(pack.error)
    code = _code(device, pack)
    reason = _reason(device, pack, candidates) if name is None else f"pack {name} as asked for"
    return Choice(pack, code, reason + _newer_code(pack.manifest, code))


def fitting(architecture: str, packs: Packs) -> tuple[Pack | BrokenPack, ...]:
    """The installed packs whose code runs on a chip of this architecture, best first: its own architecture, then the
    nearest older ones. Within an architecture variants come first, most recently installed first. Only the manifests
    decide, so packs of targets unknown to this lucebox count too."""
    found = [pack for pack in packs.installed if fits(pack.architecture, architecture)]
    rank = {pack.name: (release(pack.architecture), bool(pack.variant), pack.installed_ns) for pack in found}
    return tuple(sorted(found, key=lambda pack: rank[pack.name], reverse=True))


def best_installed(architecture: str, packs: Packs) -> Pack | BrokenPack | None:
    """The best installed pack for an architecture, usable or not."""
    return next(iter(fitting(architecture, packs)), None)


def best_target(architecture: str) -> str | None:
    """The best target for an architecture: its own, else a compatible one; None without any."""
    return next((target.name for target in serving(architecture)), None)


def min_driver(architecture: str | None, packs: Packs) -> str | None:
    """The oldest driver for the pack of an architecture, installed or not; None for an unknown one."""
    if architecture is None:
        return None
    pack = best_installed(architecture, packs)
    if isinstance(pack, Pack):
        return pack.manifest.min_driver
    target = find(best_target(architecture) or "")
    return target.min_driver if target else None


def select(spec: DeviceSpec, devices: Sequence[Device], packs: Packs, name: str | None = None) -> Selection:
    """The device among `devices` that `spec` names, and its best pack, or the pack called `name`. Only `auto` without a
    pack name may fall back to the CPU; the report says why.

    Raises:
        InvalidRequestError: a pack for the CPU.
        PackError: no such device, or no usable pack for it.
    """
    if spec.backend == "cpu":
        if name is not None:
            raise InvalidRequestError(f'device "cpu" takes no pack, got "{name}"')
        return Selection("cpu", None, None, ("cpu: as asked for",))
    if spec.backend != "auto":
        named = f"{spec.backend}:{spec.index}"
        for device in devices:
            if (device.vendor, device.index) == (spec.backend, spec.index):
                choice = choose(device, packs, name)
                return Selection(named, device, choice, (f"{named}: {choice.reason}",), _slower(device, choice))
        there = ", ".join(_label(device) for device in devices) or "none"
        raise PackError(f"there is no device {named}; devices found: {there}. `lucebox doctor` says more")
    passed, unused = [], []
    for device in devices:
        if device.vendor == "sim":  # for tests; never better than the CPU
            continue
        try:
            choice = choose(device, packs, name)
        except PackError as error:
            passed.append(f"{_label(device)}: {error}")
            name_of = "" if device.name in str(error) else f" ({device.name})"
            unused.append(f"{_label(device)}{name_of} is not used: {error}")
        else:
            report = (*passed, f"{_label(device)}: {choice.reason}")
            return Selection(_label(device), device, choice, report, (*unused, *_slower(device, choice)))
    if name is not None:
        raise PackError("; ".join(passed) or f"there is no GPU for the pack {name}")
    reason = "cpu: no GPU has a usable pack" if passed else "cpu: no GPU found"
    return Selection("cpu", None, None, (*passed, reason), tuple(unused))


def _label(device: Device) -> str:
    return f"{device.vendor}:{device.index}"


def _slower(device: Device, choice: Choice) -> tuple[str, ...]:
    """A line about a device whose pack is made for an older chip."""
    if fits(choice.pack.architecture, device.architecture) == "exact":
        return ()
    return (f"{_label(device)} ({device.name}) is slower than it could be: {choice.reason}",)


def _reason(device: Device, pack: Pack, candidates: Sequence[Pack | BrokenPack]) -> str:
    others = [other.name for other in candidates if other is not pack and other.architecture == pack.architecture]
    preferred = f"; preferred over {' and '.join(others)}" if others else ""
    if fits(pack.architecture, device.architecture) == "exact":
        return f"pack {pack.name} is made for {device.architecture}{preferred}"
    best = best_target(device.architecture)
    better = f"; {best} is better: {install_advice(best)}" if best and best != pack.target else ""
    return f"pack {pack.name} runs on {device.architecture} by the vendor's compatibility rule{better}{preferred}"


def _no_pack(device: Device, packs: Packs) -> str:
    best = best_target(device.architecture)
    what = f"{device.name} ({device.architecture})"
    if best is None:
        return f"{what}: no pack runs on this chip; there are packs for {', '.join(NAMES)}"
    return f"{what} needs the pack {best}, which is not installed (installed: {_names(packs)}); {install_advice(best)}"


def _no_such_pack(device: Device, packs: Packs, name: str) -> str:
    if name in {pack.name for pack in packs.installed}:
        return f"{device.name} ({device.architecture}): the code of pack {name} does not run on this chip"
    return f"there is no pack {name}; installed: {_names(packs)}"


def _names(packs: Packs) -> str:
    return ", ".join(pack.name for pack in packs.usable) or "none"


def _code(device: Device, pack: Pack) -> Generation:
    found = device.driver_generation
    for code in pack.manifest.generations:
        if pack.manifest.vendor == "sim" or is_at_least(found, code.min_driver):
            return code
    raise PackError(
        f"pack {pack.name} needs {DRIVERS[pack.manifest.vendor]} {pack.manifest.min_driver} or newer; the one of "
        f"{device.name} is of generation {found} ({device.driver}). Update it, then run `lucebox doctor`"
    )


def _newer_code(manifest: Manifest, code: Generation) -> str:
    """A suffix for a reason, if a newer driver would load other code; else empty."""
    newest = manifest.generations[0]
    if code is newest:
        return ""
    return f"; driver {newest.min_driver} or newer would load its code by {newest.compiler.name}, a little faster"


def is_at_least(generation: str, minimum: str) -> bool:
    """A driver's generation ("580", "7.1") is `minimum` or newer."""
    return release(generation) >= release(minimum)
