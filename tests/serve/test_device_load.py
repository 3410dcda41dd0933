"""Utilisation and power of a device, from files in the kernel's format; the links between devices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import httpx
from lucebox import LLM
from lucebox.cli.session import opening_line
from lucebox.generation.loaded_model import Link
from lucebox.serve.device_load import DeviceLoad, load_reader
from running import in_process


@dataclass
class Named:
    vendor: str
    pci: str


def write(root: Path, name: str, text: str) -> None:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_cpu_is_busy_between_two_readings(tmp_path: Path) -> None:
    write(tmp_path, "proc/stat", "cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 2 3\n")
    read = load_reader(None, tmp_path)
    write(tmp_path, "proc/stat", "cpu  160 0 110 725 105 0 0 0 0 0\n")
    assert read() == DeviceLoad(0.7, None)
    assert read() == DeviceLoad(None, None)  # no time has passed


def test_cpu_without_proc(tmp_path: Path) -> None:
    assert load_reader(None, tmp_path)() == DeviceLoad(None, None)


def test_amd_files(tmp_path: Path) -> None:
    folder = "sys/bus/pci/devices/0000:0a:00.0"
    read = load_reader(Named("hip", "0000:0A:00.0"), tmp_path)
    assert read() == DeviceLoad(None, None)
    write(tmp_path, f"{folder}/gpu_busy_percent", "37\n")
    write(tmp_path, f"{folder}/hwmon/hwmon3/power1_average", "143000000\n")
    assert read() == DeviceLoad(0.37, 143.0)
    write(tmp_path, f"{folder}/gpu_busy_percent", "unknown\n")
    assert read().busy is None


def test_a_device_without_readings() -> None:
    assert load_reader(Named("sim", ""))() == DeviceLoad(None, None)


def test_links_between_devices() -> None:
    links = (Link("peer", 2.5), Link("host: link = host", 9.0))
    with LLM("tiny-hybrid", device="cpu", context=256, sessions=1, threads=1) as llm:
        llm.model.device = replace(llm.model.device, links=links)
        assert " | link peer (2.5 us per row), host: link = host (9.0 us per row) | " in opening_line(llm)
        with in_process(llm) as url:
            metrics, status = httpx.get(f"{url}/metrics").text, httpx.get(f"{url}/status").json()
    assert 'lucebox_link_row_seconds{model="tiny-hybrid",link="0",path="peer"} 2.5e-06\n' in metrics
    assert 'lucebox_link_row_seconds{model="tiny-hybrid",link="1",path="host"} 9e-06\n' in metrics
    assert status["links"] == [{"path": link.path, "row_us": link.row_us} for link in links]
