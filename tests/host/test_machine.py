"""GPUs from /proc and /sys: small trees with the files of real machines."""

from __future__ import annotations

from pathlib import Path

import machine_data
import pytest
from lucebox.packs import machine, targets


def test_an_empty_machine_has_nothing(tmp_path: Path) -> None:
    assert machine.find_gpus(tmp_path) == []
    assert machine.nvidia_driver(tmp_path) is None
    assert machine.memory_bytes(tmp_path) is None
    assert not machine.is_wsl(tmp_path)


def test_a_card_without_a_driver_is_known_by_its_pci_id(tmp_path: Path) -> None:
    machine_data.pci(tmp_path, "0000:01:00.0", "10de", "2204")
    (gpu,) = machine.find_gpus(tmp_path)
    assert gpu == machine.FoundGpu("nvidia", "0000:01:00.0", "10de:2204", "GeForce RTX 3090", "sm_86", None)


def test_a_card_nobody_has_heard_of_is_still_found(tmp_path: Path) -> None:
    machine_data.pci(tmp_path, "0000:01:00.0", "10de", "ffff", kind="030200", driver="nouveau")
    (gpu,) = machine.find_gpus(tmp_path)
    assert (gpu.name, gpu.architecture, gpu.kernel_driver) == (None, None, "nouveau")


def test_only_gpus_of_the_two_vendors_count(tmp_path: Path) -> None:
    machine_data.pci(tmp_path, "0000:00:02.0", "8086", "46a6")  # another vendor's GPU
    machine_data.pci(tmp_path, "0000:01:00.1", "10de", "1aef", kind="040300")  # the sound of a card
    machine_data.pci(tmp_path, "0000:02:00.0", "1022", "43f7", kind="0c0330")
    assert machine.find_gpus(tmp_path) == []


def test_the_nvidia_module_names_card_and_driver(tmp_path: Path) -> None:
    machine_data.pci(tmp_path, "0000:C1:00.0".lower(), "10de", "ffff", driver="nvidia")
    machine_data.nvidia(tmp_path, "0000:c1:00.0", "NVIDIA H100 80GB HBM3")
    (gpu,) = machine.find_gpus(tmp_path)
    assert (gpu.name, gpu.kernel_driver) == ("NVIDIA H100 80GB HBM3", "nvidia")
    assert machine.nvidia_driver(tmp_path) == "580.95.05"


@pytest.mark.parametrize(
    "line",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (builder@host)",
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build",
    ],
)
def test_nvidia_driver_version(tmp_path: Path, line: str) -> None:
    machine_data.write(tmp_path, "proc/driver/nvidia/version", line + "\nGCC version:  gcc version 11.4.0\n")
    assert machine.nvidia_driver(tmp_path) == "580.95.05"


@pytest.mark.parametrize(
    "version, architecture", [(110501, "gfx1151"), (110000, "gfx1100"), (120001, "gfx1201"), (90010, "gfx90a")]
)
def test_the_amdgpu_module_tells_the_architecture(tmp_path: Path, version: int, architecture: str) -> None:
    machine_data.pci(tmp_path, "0000:c4:00.0", "1002", "ffff", driver="amdgpu")
    machine_data.kfd(tmp_path, node=0, version=0, location=0)
    machine_data.kfd(tmp_path, node=1, version=version, location=0xC400)
    (gpu,) = machine.find_gpus(tmp_path)
    assert gpu.architecture == architecture


def test_several_cards_come_in_pci_order(tmp_path: Path) -> None:
    machine_data.pci(tmp_path, "0000:41:00.0", "1002", "7550")
    machine_data.pci(tmp_path, "0000:01:00.0", "10de", "2b85")
    assert [gpu.architecture for gpu in machine.find_gpus(tmp_path)] == ["sm_120", "gfx1201"]


@pytest.mark.parametrize("chip, architecture", [("tegra234", "sm_87"), ("tegra264", "sm_110")])
def test_a_jetson_is_known_by_its_device_tree(tmp_path: Path, chip: str, architecture: str) -> None:
    machine_data.write(tmp_path, "proc/device-tree/compatible", f"nvidia,p3737\0nvidia,{chip}\0")
    machine_data.write(tmp_path, "proc/device-tree/model", "NVIDIA Jetson Developer Kit\0")
    (gpu,) = machine.find_gpus(tmp_path)
    assert gpu == machine.FoundGpu("nvidia", "soc", "", "NVIDIA Jetson Developer Kit", architecture, None)


def test_facts_of_the_host(tmp_path: Path) -> None:
    machine_data.write(tmp_path, "proc/sys/kernel/osrelease", "6.6.87.2-microsoft-standard-WSL2\n")
    machine_data.write(tmp_path, "proc/meminfo", "MemTotal:       32617300 kB\nMemFree: 1 kB\n")
    machine_data.write(tmp_path, "etc/os-release", 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n')
    assert machine.is_wsl(tmp_path)
    assert machine.memory_bytes(tmp_path) == 32617300 * 1024
    assert machine.os_name(tmp_path).startswith("Ubuntu 24.04.3 LTS (")


@pytest.mark.parametrize(
    ("vendor", "device", "name", "architecture"),
    [
        ("10de", "2503", "GeForce RTX 3060", "sm_86"),
        ("10de", "2786", "GeForce RTX 4070", "sm_89"),
        ("10de", "1f02", "GeForce RTX 2070", "sm_75"),
        ("10de", "2d04", "GeForce RTX 5060 Ti", "sm_120"),
        ("1002", "7480", "Radeon RX 7600 / 7600 XT / 7700S", "gfx1102"),
    ],
)
def test_consumer_cards_are_known_without_a_driver(
    tmp_path: Path, vendor: str, device: str, name: str, architecture: str
) -> None:
    machine_data.pci(tmp_path, "0000:01:00.0", vendor, device)
    (gpu,) = machine.find_gpus(tmp_path)
    assert (gpu.name, gpu.architecture) == (name, architecture)


def test_a_thor_whose_gpu_is_on_the_bus_is_one_gpu(tmp_path: Path) -> None:
    machine_data.write(tmp_path, "proc/device-tree/compatible", "nvidia,p3971\0nvidia,tegra264\0")
    machine_data.pci(tmp_path, "0000:01:00.0", "10de", "2b00")
    assert [gpu.address for gpu in machine.find_gpus(tmp_path)] == ["0000:01:00.0"]
    assert machine.is_jetson(tmp_path)


def test_every_target_with_a_bus_has_a_hint() -> None:
    known = {architecture for _, architecture in machine.HINTS.values()}
    jetsons = {architecture for _, architecture in machine.TEGRAS.values()}
    assert set(targets.NAMES) - {"sim"} <= known | jetsons
    assert jetsons <= set(targets.NAMES)
