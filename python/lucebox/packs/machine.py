"""Identifies this machine's processor, and its GPUs from /proc and /sys if no driver library answers. Functions with a
`root` parameter read /proc and /sys below it."""

from __future__ import annotations

import json
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "FoundGpu",
    "find_gpus",
    "first_locked",
    "hiding_variable",
    "is_container",
    "is_jetson",
    "is_nixos",
    "is_wsl",
    "memory_bytes",
    "nvidia_driver",
    "os_name",
    "processor_name",
    "rocm_path",
]

ROOT = Path("/")
VENDORS = {0x10DE: "nvidia", 0x1002: "amd"}
# Variables by which the vendors' libraries hide devices.
HIDING = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    "amd": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "CUDA_VISIBLE_DEVICES"),
}
# PCI classes: VGA, 3D, other display controller, processing accelerator.
GPU_CLASSES = (0x0300, 0x0302, 0x0380, 0x1200)

# PCI id ("10de:2204") -> name and architecture, from targets/pci_ids.csv. A driver's own answer takes precedence.
HINTS: dict[str, tuple[str, str]] = {
    pci_id: (name, architecture)
    for pci_id, (name, architecture) in json.loads(
        Path(__file__).with_name("pci_ids.json").read_text(encoding="utf-8")
    ).items()
}
# The device tree names a Jetson's chip. Orin's GPU is no PCI device; Thor's is.
TEGRAS = {"nvidia,tegra234": ("Jetson Orin", "sm_87"), "nvidia,tegra264": ("Jetson Thor", "sm_110")}


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """A GPU that the kernel lists."""

    vendor: str
    """nvidia or amd."""
    address: str
    """PCI address; "soc" if the GPU is integrated."""
    pci_id: str
    """vendor:device in hexadecimal, empty without PCI."""
    name: str | None
    architecture: str | None
    """None if only the driver can tell."""
    kernel_driver: str | None
    """The kernel module bound to it; None without one."""


def find_gpus(root: Path = ROOT) -> list[FoundGpu]:
    """NVIDIA and AMD GPUs by PCI address, then a Jetson's."""
    models, architectures = _nvidia_models(root), _amd_architectures(root)
    found = []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        vendor, product, kind = (_hex(device / name) for name in ("vendor", "device", "class"))
        if vendor not in VENDORS or product is None or kind is None or kind >> 8 not in GPU_CLASSES:
            continue
        pci_id = f"{vendor:04x}:{product:04x}"
        name, architecture = HINTS.get(pci_id, (None, None))
        driver = device / "driver"
        found.append(
            FoundGpu(
                vendor=VENDORS[vendor],
                address=device.name,
                pci_id=pci_id,
                name=models.get(device.name.lower(), name),
                architecture=architectures.get(device.name.lower(), architecture),
                kernel_driver=driver.resolve().name if driver.exists() else None,
            )
        )
    listed = {gpu.architecture for gpu in found}
    return found + [gpu for gpu in _tegra(root) if gpu.architecture not in listed]


def nvidia_driver(root: Path = ROOT) -> str | None:
    """Version of the loaded NVIDIA kernel module: "580.95.05"."""
    found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", _text(root / "proc/driver/nvidia/version").partition("\n")[0])
    return found[0] if found else None


def is_jetson(root: Path = ROOT) -> bool:
    """Whether this is an NVIDIA Tegra, whose driver is part of JetPack."""
    return bool(_tegra(root))


def is_wsl(root: Path = ROOT) -> bool:
    """Whether this is WSL, which exposes GPUs through /dev/dxg and not in /sys."""
    return "microsoft" in _text(root / "proc/sys/kernel/osrelease").lower()


def is_nixos(root: Path = ROOT) -> bool:
    return re.search(r"^ID=nixos$", _text(root / "etc/os-release"), re.MULTILINE) is not None


def is_container(root: Path = ROOT) -> bool:
    """Whether this is a container of Docker, Podman or Kubernetes."""
    marks = (".dockerenv", "run/.containerenv", "var/run/secrets/kubernetes.io")
    if any((root / mark).exists() for mark in marks):
        return True
    return re.search(r"docker|libpod|kubepods|containerd", _text(root / "proc/1/cgroup")) is not None


def hiding_variable(vendor: str) -> tuple[str, str] | None:
    """The name and value of a variable by which the vendor's library hides devices."""
    return next(((name, os.environ[name]) for name in HIDING[vendor] if name in os.environ), None)


def rocm_path() -> Path | None:
    """The folder of ROCm that its own variable names."""
    named = os.environ.get("ROCM_PATH")
    return Path(named) if named else None


def first_locked(root: Path, *patterns: str) -> str | None:
    """The first of these files that this user may not read and write."""
    files = [file for pattern in patterns for file in sorted(root.glob(pattern))]
    return next((f"/{file.relative_to(root)}" for file in files if not os.access(file, os.R_OK | os.W_OK)), None)


def os_name(root: Path = ROOT) -> str:
    """The distribution's name, else the kernel's."""
    found = re.search(r'^PRETTY_NAME="?([^"\n]+)', _text(root / "etc/os-release"), re.MULTILINE)
    return f"{found[1] if found else platform.system()} ({platform.machine()})"


def memory_bytes(root: Path = ROOT) -> int | None:
    found = re.search(r"^MemTotal:\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _nvidia_models(root: Path) -> dict[str, str]:
    """Marketing name by PCI address, from the NVIDIA kernel module."""
    models = {}
    for folder in (root / "proc/driver/nvidia/gpus").glob("*"):
        found = re.search(r"^Model:\s+(.+)$", _text(folder / "information"), re.MULTILINE)
        if found:
            models[folder.name.lower()] = found[1].strip()
    return models


def _amd_architectures(root: Path) -> dict[str, str]:
    """gfx name by PCI address, from the amdgpu kernel module's compute topology."""
    architectures = {}
    for file in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties"):
        facts = dict(re.findall(r"^(\w+) (\d+)$", _text(file), re.MULTILINE))
        version, location = int(facts.get("gfx_target_version", 0)), int(facts.get("location_id", 0))
        if version:  # 0 is a CPU
            # location_id is bus << 8 | device << 3 | function; version 110501 is gfx1151, minor and step in hexadecimal
            address = f"{int(facts.get('domain', 0)):04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.{location & 7}"
            architectures[address] = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
    return architectures


def _tegra(root: Path) -> list[FoundGpu]:
    compatible = _text(root / "proc/device-tree/compatible").split("\0")
    return [
        FoundGpu("nvidia", "soc", "", _text(root / "proc/device-tree/model").rstrip("\0") or name, architecture, None)
        for chip, (name, architecture) in TEGRAS.items()
        if chip in compatible
    ]


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _hex(file: Path) -> int | None:
    try:
        return int(_text(file), 16)
    except ValueError:
        return None


def processor_name() -> str:
    """The processor's name, from the system."""
    try:
        lines = (ROOT / "proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()
