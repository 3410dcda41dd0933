"""Files of /proc and /sys as the kernel writes them, below a temporary root."""

from __future__ import annotations

from pathlib import Path


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def pci(root: Path, address: str, vendor: str, device: str, *, kind: str = "030000", driver: str | None = None) -> None:
    """A PCI device, bound to a kernel driver or to none."""
    folder = f"sys/bus/pci/devices/{address}"
    for name, value in {"vendor": vendor, "device": device, "class": kind}.items():
        write(root, f"{folder}/{name}", f"0x{value}\n")
    if driver:
        (root / "sys/bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
        (root / folder / "driver").symlink_to(f"../../drivers/{driver}")


def nvidia(root: Path, address: str, model: str, version: str = "580.95.05") -> None:
    """The NVIDIA kernel module with one card."""
    write(
        root,
        "proc/driver/nvidia/version",
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build  (builder@host)\n",
    )
    write(
        root,
        f"proc/driver/nvidia/gpus/{address}/information",
        f"Model: \t\t {model}\nIRQ:   \t\t 16\nBus Location: \t {address}\n",
    )


def kfd(root: Path, *, node: int, version: int, location: int) -> None:
    """A node of amdgpu's compute topology; version 0 is a CPU."""
    write(
        root,
        f"sys/class/kfd/kfd/topology/nodes/{node}/properties",
        f"simd_count 80\ngfx_target_version {version}\nvendor_id 4098\nlocation_id {location}\ndomain 0\n",
    )
