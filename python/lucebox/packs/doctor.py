"""`examine`: reports the GPUs of this machine, their packs, what blocks them, and the commands to run.

Uses the answers of the driver libraries, and /proc and /sys if no library answers. Needs no vendor tool.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import lucebox
from lucebox import _engine, packs
from lucebox.cache import step_costs_folder
from lucebox.errors import PackError
from lucebox.packs import causes, machine
from lucebox.packs.drivers import VENDORS, Gpu, Survey, survey
from lucebox.packs.links import LinkState, prove_links
from lucebox.packs.machine import processor_name

__all__ = [
    "DeviceState",
    "DriverState",
    "Host",
    "PackState",
    "Report",
    "examine",
    "with_links",
]

ON_CPU = "Models run on the CPU."


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
    step_costs: str
    """The folder of step costs, which each model's first start with a drafter measures."""


@dataclass(frozen=True, slots=True)
class DriverState:
    """The driver library of one back end."""

    backend: str
    version: str | None
    """Version reported by the library: "CUDA 13.0"."""
    kernel_version: str | None
    """Version of the kernel module, if known."""
    error: str | None
    """None: the library answers."""


@dataclass(frozen=True, slots=True)
class DeviceState:
    """One GPU and whether lucebox can use it."""

    device: str | None
    """The device's name for users: cuda:0; None if the driver does not answer."""
    name: str
    architecture: str | None
    total_bytes: int | None
    free_bytes: int | None
    pack: str | None
    """The pack that serves it."""
    reason: str
    """Why this pack was chosen, or why there is none and what to do."""
    install: str | None
    """The target whose pack to install, because it is missing or broken."""
    driver: str | None = None
    """What must precede any pack, mostly a driver; None if the driver is sufficient."""
    blocked: str | None = None
    """The installed pack that `reason` keeps the device from using."""
    code: str | None = None
    """The compiler of the code that the driver loads from the pack: "nvcc 13.0.88"."""
    warning: str | None = None
    """A known fault of the driver's version on this chip."""


@dataclass(frozen=True, slots=True)
class PackState:
    target: str
    """The pack's name: its target, and its variant if it is one."""
    distribution: str
    version: str | None
    n_kernels: int | None
    bytes: int | None
    devices: tuple[str, ...]
    """Devices that use the pack."""
    blocked: tuple[str, ...]
    """Devices that would use the pack and cannot; DeviceState.reason says why."""
    error: str | None
    """None if manifest and hashes are valid."""


@dataclass(frozen=True, slots=True)
class Report:
    host: Host
    drivers: tuple[DriverState, ...]
    devices: tuple[DeviceState, ...]
    packs: tuple[PackState, ...]
    drivers_first: tuple[str, ...]
    """What must precede `install`, mostly drivers."""
    install: str | None
    """The command for this machine, as a shell line; None if no pack is missing or broken."""
    commands: tuple[tuple[str, ...], ...]
    """The commands of `install`, each as its arguments after `pip`."""
    verdict: str
    ok: bool
    """Whether a GPU is usable, or there is no GPU."""
    links: tuple[LinkState, ...] = ()
    """From each usable GPU to the next one of its vendor."""


def examine(drivers: Survey | None = None, root: Path = machine.ROOT, index_url: str | None = None) -> Report:
    """The report of this machine; `root` contains the /proc, /sys and /etc to read. The commands name `index_url`."""
    answers = drivers or survey()
    installed = _check_files(packs.find())
    devices = [_with_driver(device, installed, root) for device in answers.devices]
    answering = {VENDORS[device.vendor] for device in answers.devices}
    devices += [
        _without_driver(gpu, answers, installed, root) for gpu in machine.find_gpus(root) if gpu.vendor not in answering
    ]
    missing = [device.install for device in devices if device.install]
    commands = [command.from_index(index_url) for command in _commands(missing, installed)]
    ok, verdict = _verdict(devices, machine.is_wsl(root))
    return Report(
        host=_host(root),
        drivers=tuple(_driver(backend, answers, root) for backend in VENDORS),
        devices=tuple(devices),
        packs=_pack_states(installed, devices),
        drivers_first=tuple(dict.fromkeys(device.driver for device in devices if device.driver)),
        install=" && ".join(map(str, commands)) or None,
        commands=tuple(command.words for command in commands),
        verdict=verdict,
        ok=ok,
    )


def with_links(report: Report) -> Report:
    """The report with the links between its usable GPUs, which this proves."""
    ready = [device for device in report.devices if device.pack]
    groups = [[one.device for one in ready if one.device and _vendor(one) == backend] for backend in VENDORS]
    return replace(report, links=tuple(link for group in groups for link in prove_links(group)))


def _check_files(found: packs.Packs) -> packs.Packs:
    """The packs; packs with damaged files are moved to the broken ones."""
    usable, broken = [], list(found.broken)
    for pack in found.usable:
        try:
            pack.check()
        except PackError as error:
            broken.append(packs.broken_pack(pack.name, pack.distribution, error, pack.installed_ns))
        else:
            usable.append(pack)
    return packs.Packs(tuple(usable), tuple(broken))


def _with_driver(device: Gpu, installed: packs.Packs, root: Path) -> DeviceState:
    pack, code = None, None
    try:
        choice = packs.choose(device, installed)
        pack, reason = choice.pack.name, choice.reason
        code = str(choice.code.compiler)
    except PackError as error:
        reason = str(error)
    if device.error:
        pack, code, reason = None, None, device.error
    vendor = VENDORS[device.vendor]
    minimum = packs.min_driver(device.architecture, installed)
    is_old = minimum is not None and not packs.is_at_least(device.driver_generation, minimum)
    return DeviceState(
        device=f"{device.vendor}:{device.index}",
        name=device.name,
        architecture=device.architecture,
        total_bytes=device.total_bytes,
        free_bytes=device.free_bytes,
        pack=pack,
        reason=reason,
        install=_missing_pack(device.architecture, installed),
        driver=causes.driver_step(vendor, "Update", minimum, root) if is_old and minimum else None,
        blocked=None if pack else _usable_pack(device.architecture, installed),
        code=code,
        warning=causes.known_fault(vendor, device.architecture, device.driver_generation),
    )


def _without_driver(gpu: machine.FoundGpu, answers: Survey, installed: packs.Packs, root: Path) -> DeviceState:
    """A GPU that the kernel lists but no driver library reports."""
    minimum = packs.min_driver(gpu.architecture, installed) or causes.OLDEST_DRIVERS[gpu.vendor]
    cause = causes.find(gpu, answers, minimum, root)
    runs_here = gpu.architecture is None or _can_run(gpu.architecture, installed)
    return DeviceState(
        device=None,
        name=gpu.name or f"{gpu.vendor} GPU {gpu.pci_id} at {gpu.address}",
        architecture=gpu.architecture,
        total_bytes=None,
        free_bytes=None,
        pack=None,
        reason=cause.what if runs_here else f"no pack runs on {gpu.architecture}; {cause.what}",
        install=_missing_pack(gpu.architecture, installed),
        driver=cause.step if runs_here else None,
        blocked=_usable_pack(gpu.architecture, installed),
    )


def _can_run(architecture: str, installed: packs.Packs) -> bool:
    """Whether a released pack, or an installed pack of an unknown target, runs on this architecture."""
    return packs.best_target(architecture) is not None or packs.best_installed(architecture, installed) is not None


def _usable_pack(architecture: str | None, installed: packs.Packs) -> str | None:
    pack = packs.best_installed(architecture, installed) if architecture else None
    return pack.name if isinstance(pack, packs.Pack) else None


def _missing_pack(architecture: str | None, installed: packs.Packs) -> str | None:
    """The target whose pack to install for an architecture; None if its pack is valid."""
    target = packs.best_target(architecture) if architecture else None
    return None if target in {pack.target for pack in installed.usable} else target


def _commands(missing: Sequence[str], installed: packs.Packs) -> list[packs.PipCommand]:
    """The commands that install missing packs and repair broken ones, even if no GPU needs them: a pack of another
    version fails `pip check`. A broken pack that its owner must rebuild has no command."""
    absent: list[str] = []
    mends: list[packs.PipCommand] = []
    for target in dict.fromkeys([*missing, *(pack.target for pack in installed.broken)]):
        broken = [pack for pack in installed.broken if pack.target == target]
        if all(pack.command == packs.install_command(target) for pack in broken):
            absent.append(target)
        else:
            mends += [pack.command for pack in broken if pack.command]
    install = [packs.install_command(*absent)] if absent else []
    return [*install, *dict.fromkeys(mends)]


def _pack_states(installed: packs.Packs, devices: Sequence[DeviceState]) -> tuple[PackState, ...]:
    states = [
        PackState(
            target=pack.name,
            distribution=pack.distribution,
            version=pack.manifest.version,
            n_kernels=len(pack.manifest.kernel_names),
            bytes=sum(file.bytes for file in pack.manifest.stored),
            devices=tuple(device.device for device in devices if device.device and device.pack == pack.name),
            blocked=tuple(device.device or device.name for device in devices if device.blocked == pack.name),
            error=None,
        )
        for pack in installed.usable
    ]
    return (
        *states,
        *(PackState(pack.name, pack.distribution, None, None, None, (), (), pack.error) for pack in installed.broken),
    )


def _driver(backend: str, answers: Survey, root: Path) -> DriverState:
    version = next((device.driver for device in answers.devices if device.vendor == backend), None)
    kernel = machine.nvidia_driver(root) if backend == "cuda" else None
    if version is None and backend in answers.versions:
        version = f"{answers.versions[backend][0]}, reports no device"
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
        step_costs=str(step_costs_folder()),
    )


def _vendor(device: DeviceState) -> str:
    return (device.device or "").partition(":")[0]


def _verdict(devices: Sequence[DeviceState], wsl: bool) -> tuple[bool, str]:
    ready = [device for device in devices if device.pack]
    if ready:
        names = " and ".join(f"{device.device} ({device.name})" for device in ready)
        together = [device.device for device in ready if device.device and _vendor(device) == _vendor(ready[0])]
        several = f" A model that is too large for one: --device {','.join(together)}." if len(together) > 1 else ""
        return True, f"{names} ready; `lucebox selftest --device {ready[0].device}` checks every kernel.{several}"
    if devices:
        return False, f"No GPU of this machine is usable yet; the table has the reasons. {ON_CPU}"
    if wsl:
        return True, f"No GPU found. WSL shows a GPU once Windows has a driver for it. {ON_CPU}"
    return True, f"No GPU found. {ON_CPU}"
