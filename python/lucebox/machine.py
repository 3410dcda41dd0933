"""This machine's processor, and its GPUs from /proc and /sys for when no driver library answers. Functions that take a
`root` read the trees below it."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FoundGpu", "find_gpus", "is_wsl", "memory_bytes", "nvidia_driver", "os_name", "processor_name"]

ROOT = Path("/")
VENDORS = {0x10DE: "nvidia", 0x1002: "amd"}
# PCI classes: VGA, 3D, other display controller, processing accelerator.
GPU_CLASSES = (0x0300, 0x0302, 0x0380, 0x1200)

# PCI device id -> name and architecture, common boards only. A driver's own answer takes precedence.
HINTS = {
    (0x10DE, 0x1E04): ("GeForce RTX 2080 Ti", "sm_75"),
    (0x10DE, 0x1EB8): ("T4", "sm_75"),
    (0x10DE, 0x20B0): ("A100 SXM4 40GB", "sm_80"),
    (0x10DE, 0x20B2): ("A100 SXM4 80GB", "sm_80"),
    (0x10DE, 0x20F1): ("A100 PCIe 40GB", "sm_80"),
    (0x10DE, 0x20B5): ("A100 PCIe 80GB", "sm_80"),
    (0x10DE, 0x2203): ("GeForce RTX 3090 Ti", "sm_86"),
    (0x10DE, 0x2204): ("GeForce RTX 3090", "sm_86"),
    (0x10DE, 0x2206): ("GeForce RTX 3080", "sm_86"),
    (0x10DE, 0x2230): ("RTX A6000", "sm_86"),
    (0x10DE, 0x2235): ("A40", "sm_86"),
    (0x10DE, 0x2236): ("A10", "sm_86"),
    (0x10DE, 0x2484): ("GeForce RTX 3070", "sm_86"),
    (0x10DE, 0x2503): ("GeForce RTX 3060", "sm_86"),
    (0x10DE, 0x2684): ("GeForce RTX 4090", "sm_89"),
    (0x10DE, 0x2704): ("GeForce RTX 4080", "sm_89"),
    (0x10DE, 0x27B8): ("L4", "sm_89"),
    (0x10DE, 0x26B5): ("L40", "sm_89"),
    (0x10DE, 0x26B9): ("L40S", "sm_89"),
    (0x10DE, 0x2330): ("H100 SXM5 80GB", "sm_90"),
    (0x10DE, 0x2331): ("H100 PCIe", "sm_90"),
    (0x10DE, 0x2335): ("H200 SXM 141GB", "sm_90"),
    (0x10DE, 0x2342): ("GH200", "sm_90"),
    (0x10DE, 0x2901): ("B200", "sm_100"),
    (0x10DE, 0x2941): ("GB200", "sm_100"),
    (0x10DE, 0x3182): ("B300 SXM6", "sm_103"),
    (0x10DE, 0x2B85): ("GeForce RTX 5090", "sm_120"),
    (0x10DE, 0x2C02): ("GeForce RTX 5080", "sm_120"),
    (0x10DE, 0x2C05): ("GeForce RTX 5070 Ti", "sm_120"),
    (0x10DE, 0x2F04): ("GeForce RTX 5070", "sm_120"),
    (0x10DE, 0x2E12): ("GB10", "sm_121"),
    (0x1002, 0x744C): ("Radeon RX 7900 (Navi 31)", "gfx1100"),
    (0x1002, 0x1586): ("Radeon 8050S / 8060S (Strix Halo)", "gfx1151"),
    (0x1002, 0x7550): ("Radeon RX 9070 (Navi 48)", "gfx1201"),
}
# Jetson modules have no PCI GPU: the device tree names the chip.
TEGRAS = {"nvidia,tegra234": ("Jetson Orin", "sm_87"), "nvidia,tegra264": ("Jetson Thor", "sm_110")}


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """A GPU that the kernel lists."""

    vendor: str
    """nvidia or amd."""
    address: str
    """PCI address; "soc" where the GPU is part of the chip."""
    pci_id: str
    """vendor:device in hexadecimal, empty without PCI."""
    name: str | None
    architecture: str | None
    """None: unknown without the driver."""
    kernel_driver: str | None
    """The kernel module bound to it, None where there is none."""


def find_gpus(root: Path = ROOT) -> list[FoundGpu]:
    """NVIDIA and AMD GPUs by PCI address, then a Jetson's."""
    models, architectures = _nvidia_models(root), _amd_architectures(root)
    found = []
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        vendor, product, kind = (_hex(device / name) for name in ("vendor", "device", "class"))
        if vendor not in VENDORS or product is None or kind is None or kind >> 8 not in GPU_CLASSES:
            continue
        name, architecture = HINTS.get((vendor, product), (None, None))
        driver = device / "driver"
        found.append(
            FoundGpu(
                vendor=VENDORS[vendor],
                address=device.name,
                pci_id=f"{vendor:04x}:{product:04x}",
                name=models.get(device.name.lower(), name),
                architecture=architectures.get(device.name.lower(), architecture),
                kernel_driver=driver.resolve().name if driver.exists() else None,
            )
        )
    return found + _tegra(root)


def nvidia_driver(root: Path = ROOT) -> str | None:
    """Version of the loaded NVIDIA kernel module: "580.95.05"."""
    found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", _text(root / "proc/driver/nvidia/version").partition("\n")[0])
    return found[0] if found else None


def is_wsl(root: Path = ROOT) -> bool:
    """Linux inside Windows: GPUs are behind /dev/dxg and absent from /sys."""
    return "microsoft" in _text(root / "proc/sys/kernel/osrelease").lower()


def os_name(root: Path = ROOT) -> str:
    """The name of the distribution, else of the kernel."""
    found = re.search(r'^PRETTY_NAME="?([^"\n]+)', _text(root / "etc/os-release"), re.MULTILINE)
    return f"{found[1] if found else platform.system()} ({platform.machine()})"


def memory_bytes(root: Path = ROOT) -> int | None:
    """Total memory of the machine."""
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
