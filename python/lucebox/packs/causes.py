"""Why no driver library reports a GPU that the kernel lists, and what to do: told apart by the library's answer and by
/proc, /sys, /dev and the environment."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lucebox.packs import driver_libraries, machine, targets
from lucebox.packs.choice import DRIVERS, is_at_least
from lucebox.packs.drivers import VENDORS, Survey
from lucebox.packs.machine import FoundGpu

__all__ = ["CAUSES", "OLDEST_DRIVERS", "Cause", "driver_step", "find", "known_fault"]

KERNEL_DRIVERS = {"nvidia": "nvidia", "amd": "amdgpu"}
OLDEST_DRIVERS = {  # minimum driver for a chip that only its driver can identify
    vendor: min((target.min_driver for target in targets.TARGETS if target.vendor == vendor), key=float)
    for vendor in KERNEL_DRIVERS
}
# AMD's own package index, and the chips that it has code for.
AMD_INDEX = "https://repo.amd.com/rocm/whl-multi-arch/"
AMD_CHIPS = re.compile(r"gfx110[0-3]|gfx115[0-3]|gfx120[01]")
STATUS = re.compile(r"^\[\w+\] \w+: [^()]*\((\d+)\)")  # of a driver call, as the engine reports it


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause that keeps a GPU from being used; {words} are filled in."""

    what: str
    step: str
    """What to do, a sentence without its full stop."""

    def filled(self, **words: str) -> Cause:
        return Cause(self.what.format(**words), self.step.format(**words))


# The table of docs/doctor.md. {install} is the sentence of driver_step().
CAUSES = {
    "no driver": Cause("{error}", "{install}"),
    "container": Cause(
        "this container was started without its GPUs: it has no libcuda.so.1",
        "Start the container with `docker run --gpus all` (needs the NVIDIA Container Toolkit on the host) or "
        "`podman run --device nvidia.com/gpu=all`",
    ),
    "libraries": Cause(
        "the NVIDIA kernel module {found} is loaded, but its library libcuda.so.1 is not installed",
        "Install the library of the same version: libnvidia-compute-NNN on Debian and Ubuntu, "
        "nvidia-driver-cuda-libs on Fedora and RHEL",
    ),
    "nixos": Cause(
        "NixOS has no /run/opengl-driver/lib/libcuda.so.1",
        'Set `hardware.graphics.enable = true` and `services.xserver.videoDrivers = ["nvidia"]`, then rebuild NixOS',
    ),
    "stub": Cause(
        "libcuda.so.1 is the toolkit's stub for linking (status 34), not the driver",
        "Take the folder of the stub (.../stubs) out of LD_LIBRARY_PATH",
    ),
    "fabric": Cause(
        "the machine's NVSwitch fabric is not ready (status 802)",
        "Start the fabric manager of the driver's version: `sudo systemctl start nvidia-fabricmanager`",
    ),
    "mismatch": Cause(
        "libcuda.so.1 and the kernel module have different versions (status 803)",
        "Reboot, so that the kernel loads the module of the installed driver; in a container, remove the image's own "
        "libcuda.so.1",
    ),
    "compat": Cause(
        "libcuda.so.1 is of the package cuda-compat, which does not support this GPU (status 804)",
        "Remove cuda-compat, or take its folder (.../compat) out of LD_LIBRARY_PATH",
    ),
    "unknown": Cause(
        "the NVIDIA driver fails with an unknown error (status 999)",
        "Reload its module, which helps after a suspend: `sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm`; else "
        "reboot. `sudo dmesg` has the driver's messages",
    ),
    "old for chip": Cause("the NVIDIA driver {found} does not know this GPU, and reports no device", "{install}"),
    "hidden": Cause("{variable}={value} hides the GPU", "Unset {variable}, or name the GPU in it"),
    "module": Cause(
        "the kernel module {module} does not drive this GPU",
        "Load it with `sudo modprobe {module}`; if Secure Boot refuses the module, enrol its key with `mokutil`",
    ),
    "device files": Cause("there is no {file}", "Make it with `sudo nvidia-modprobe -c 0 -u`"),
    "device files in a container": Cause(
        "this container was started without its GPUs: it has no {file}", "Start it with `docker run {flags}`"
    ),
    "no kfd": Cause(
        "there is no /dev/kfd, which computing needs",
        "Load the module with `sudo modprobe amdgpu`; a kernel without CONFIG_HSA_AMD has no /dev/kfd",
    ),
    "rights": Cause(
        "this user may not open {file}",
        "Join the groups: `sudo usermod -aG render,video $USER`, then log in again; in a container, add "
        "`--group-add keep-groups` (podman) or the number of the host's group render (docker)",
    ),
    "nvidia rights": Cause("this user may not open {file}", "Let the user read and write {file}"),
    "new hip": Cause(
        "{library} is newer than the HIP 6 and 7 that this lucebox reads",
        "Install ROCm 7 beside it, or update lucebox",
    ),
    "amd wheels": Cause(
        "{error}",
        "Install the HIP runtime of ROCm {minimum} or newer (libamdhip64), by your distribution or with `pip install "
        '--index-url {index} "rocm[libraries,device-{chip}]"`',
    ),
    "no device": Cause(
        "the {driver} answers, but reports no device", "Look for the driver's messages with `sudo dmesg`"
    ),
}
BY_STATUS = {34: "stub", 802: "fabric", 803: "mismatch", 804: "compat", 999: "unknown"}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of driver versions older than `mended`, on the chips that the pattern names."""

    vendor: str
    chips: re.Pattern[str]
    mended: str
    what: str


KNOWN_FAULTS = (
    Fault("amd", re.compile("gfx1151"), "7.13", "page faults and errors of memory in use while the GPU computes"),
)


def find(gpu: FoundGpu, answers: Survey, minimum: str, root: Path = machine.ROOT) -> Cause:
    """The cause for a GPU that no library reports. `minimum` is the oldest driver for its pack."""
    backend = next(backend for backend, vendor in VENDORS.items() if vendor == gpu.vendor)
    error = answers.errors.get(backend, "")
    if gpu.vendor == "nvidia":
        cause = _nvidia(gpu, error, answers.versions.get(backend, ("", ""))[1], minimum, root)
    else:
        cause = _amd(gpu, error, minimum, root)
    if gpu.kernel_driver not in (None, KERNEL_DRIVERS[gpu.vendor]):
        taken = f"the kernel gave it to {gpu.kernel_driver}, not to {KERNEL_DRIVERS[gpu.vendor]}"
        return Cause(f"{taken}; {cause.what}", cause.step)
    return cause


def driver_step(vendor: str, verb: Literal["Install", "Update"], minimum: str, root: Path = machine.ROOT) -> str:
    """How to install a driver on this machine: a sentence without its full stop."""
    to = " to" if verb == "Update" else ""
    if vendor == "amd":
        return f"{verb} the HIP runtime{to or ' of'} ROCm {minimum} or newer (libamdhip64)"
    if machine.is_jetson(root):  # JetPack 6 has CUDA 12, JetPack 7 CUDA 13
        release = 7 if is_at_least(minimum, "580") else 6
        return f"{verb}{to} JetPack {release} or newer, which contains an NVIDIA driver of {minimum} or newer"
    if machine.is_wsl(root):
        return (
            f"{verb} the NVIDIA driver{to} {minimum} or newer in Windows; WSL uses that one, so install none in Linux"
        )
    return f"{verb} the NVIDIA driver{to} {minimum} or newer"


def known_fault(vendor: str, architecture: str, generation: str) -> str | None:
    """A warning about a driver version that answers; None without a known fault."""
    for fault in KNOWN_FAULTS:
        is_meant = vendor == fault.vendor and fault.chips.fullmatch(architecture)
        if is_meant and not is_at_least(generation, fault.mended):
            faulty = f"{DRIVERS[vendor]} {generation} has known faults on {architecture}"
            return f"{faulty}: {fault.what}; {fault.mended} mends them"
    return None


def _nvidia(gpu: FoundGpu, error: str, version: str, minimum: str, root: Path) -> Cause:
    module = machine.nvidia_driver(root)
    if error:
        if name := BY_STATUS.get(_status(error) or 0):
            return CAUSES[name]
        if "cannot open shared object file" in error:
            if machine.is_container(root):
                return CAUSES["container"]
            if machine.is_nixos(root):
                return CAUSES["nixos"]
            if module:
                return CAUSES["libraries"].filled(found=module)
        install = driver_step("nvidia", "Update" if module else "Install", minimum, root)
        return CAUSES["no driver"].filled(error=error, install=install)
    found = module or version
    if found and gpu.architecture and not is_at_least(found, minimum):
        return CAUSES["old for chip"].filled(found=found, install=driver_step("nvidia", "Update", minimum, root))
    return _no_device(gpu, root, "dev/nvidiactl", "nvidia rights", "--gpus all", "device files")


def _amd(gpu: FoundGpu, error: str, minimum: str, root: Path) -> Cause:
    if not error:
        return _no_device(gpu, root, "dev/kfd", "rights", "--device /dev/kfd --device /dev/dri", "no kfd")
    if library := driver_libraries.newer_hip(root):
        return CAUSES["new hip"].filled(library=library)
    if gpu.architecture and AMD_CHIPS.fullmatch(gpu.architecture):
        return CAUSES["amd wheels"].filled(error=error, minimum=minimum, index=AMD_INDEX, chip=gpu.architecture)
    return CAUSES["no driver"].filled(error=error, install=driver_step("amd", "Install", minimum, root))


def _no_device(gpu: FoundGpu, root: Path, file: str, rights: str, flags: str, absent: str) -> Cause:
    """The cause where the library answers, and reports no device."""
    if hiding := machine.hiding_variable(gpu.vendor):
        return CAUSES["hidden"].filled(variable=hiding[0], value=hiding[1])
    if machine.is_container(root) and not (root / file).exists():
        return CAUSES["device files in a container"].filled(file=f"/{file}", flags=flags)
    if gpu.kernel_driver != KERNEL_DRIVERS[gpu.vendor] and gpu.address != "soc":
        return CAUSES["module"].filled(module=KERNEL_DRIVERS[gpu.vendor])
    if not (root / file).exists():
        return CAUSES[absent].filled(file=f"/{file}")
    if locked := machine.first_locked(root, file, *(("dev/dri/renderD*",) if gpu.vendor == "amd" else ())):
        return CAUSES[rights].filled(file=locked)
    return CAUSES["no device"].filled(driver=DRIVERS[gpu.vendor])


def _status(error: str) -> int | None:
    found = STATUS.match(error)
    return int(found[1]) if found else None
