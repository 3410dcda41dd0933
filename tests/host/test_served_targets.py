"""lucebox.targets: the table installed with the host, which pack serves a chip, and `lucebox targets`."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
from lucebox.targets import NAMES, TARGETS, find, serves, serving

import targets


def test_the_hosts_table_is_the_folders() -> None:
    for target, known in zip(targets.load_all(), TARGETS, strict=True):
        assert (known.name, known.slug, known.vendor) == (target.name, target.slug, target.vendor)
        assert (known.architecture, known.min_driver) == (target.architecture, target.min_driver)
        assert dataclasses.asdict(known.capabilities) == dataclasses.asdict(target.capabilities)
        assert [board.name for board in known.boards] == [board.name for board in target.boards]


def test_find() -> None:
    target = find("sm86")
    assert target is find("sm_86") is not None
    assert target.install == "pip install 'lucebox[sm86]'"
    assert find("sm_99") is None


@pytest.mark.parametrize(
    ("device", "packs"),
    [
        ("sm_75", "sm_75"),
        ("sm_70", ""),  # older than any code there is
        ("sm_80", "sm_80"),
        ("sm_86", "sm_86 sm_80"),
        ("sm_87", "sm_87"),  # Tegra: nothing but its own
        ("sm_88", ""),
        ("sm_89", "sm_89 sm_86 sm_80"),  # and not sm_87
        ("sm_90", "sm_90"),  # another major
        ("sm_100", "sm_100"),
        ("sm_103", "sm_103"),  # sm_100a is for that chip alone
        ("sm_110", "sm_110"),
        ("sm_120", "sm_120"),
        ("sm_121", "sm_121"),
        ("sm_107", ""),
        ("gfx1100", "gfx1100"),
        ("gfx1101", ""),
        ("gfx1151", "gfx1151"),
        ("gfx1201", "gfx1201"),
        ("sim", "sim"),
        ("", ""),
    ],
)
def test_which_packs_serve_a_chip(device: str, packs: str) -> None:
    names = [target.name for target in serving(device)]
    assert names == packs.split()
    assert [serves(name, device) for name in names] == ["exact" if name == device else "compatible" for name in names]
    assert all(serves(name, device) is None for name in NAMES if name not in names)


def test_the_command() -> None:
    command = [sys.executable, "-m", "lucebox", "targets"]
    table = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert [line.split()[0] for line in table] == ["target", *NAMES]
    told = json.loads(subprocess.run([*command, "--json"], check=True, capture_output=True, text=True).stdout)
    by_name = {row["name"]: row for row in told["targets"]}
    assert tuple(by_name) == NAMES
    assert by_name["sm_80"]["runs_on"] == ["sm_80", "sm_86", "sm_89"]
    assert by_name["sm_90"]["boards"][1] == {
        "name": "H100 SXM",
        "sm_count": 132,
        "memory_gb": 80,
        "bandwidth_gb_s": 3350,
    }
