"""lucebox.packs.targets: the table installed with the host, which pack serves a chip, and `lucebox targets`."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pack_data
import pytest
from lucebox import cli
from lucebox.packs.targets import NAMES, TARGETS, find, fits, serves, serving, vendor_of

import targets


def test_the_hosts_table_is_the_folders() -> None:
    for target, known in zip(targets.load_all(), TARGETS, strict=True):
        assert (known.name, known.slug, known.vendor) == (target.name, target.slug, target.vendor)
        assert (known.architecture, known.min_driver) == (target.architecture, target.oldest_driver)
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
        ("sm_61", ""),  # older than any code there is
        ("sm_70", "sm_70"),
        ("sm_72", ""),  # Tegra
        ("sm_75", "sm_75 sm_70"),
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
        ("gfx1101", "gfx1101"),
        ("gfx1102", "gfx1102"),
        ("gfx1103", "gfx1103"),
        ("gfx1150", "gfx1150"),
        ("gfx1152", ""),
        ("gfx1200", "gfx1200"),
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


@pytest.mark.parametrize(
    ("architecture", "device", "how"),
    [
        ("gfx1152", "gfx1152", "exact"),
        ("gfx1152", "gfx1153", None),
        ("sm_122", "sm_122", "exact"),
        ("sm_122", "sm_124", "compatible"),
        ("sm_122a", "sm_122", "exact"),
        ("sm_122a", "sm_124", None),
        ("gfx90a", "gfx90a", None),  # no target of lucebox: its waves have 64 lanes
        ("xe_2", "xe_2", None),
    ],
)
def test_code_of_an_unknown_target(architecture: str, device: str, how: str | None) -> None:
    assert fits(architecture, device) == how


def test_vendors() -> None:
    assert [vendor_of(name) for name in ("sm_90a", "gfx1152", "sim", "xe_2")] == ["nvidia", "amd", "sim", None]
    assert all(vendor_of(target.architecture) == target.vendor for target in TARGETS)


def test_the_command_lists_an_installed_pack_of_an_unknown_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack_data.install(tmp_path, "gfx1152")
    with pack_data.on_path(tmp_path):
        assert cli.main(["targets", "--json"]) == 0
    *_, last = json.loads(capsys.readouterr().out)["targets"]
    assert (last["name"], last["runs_on"], last["install"]) == ("gfx1152", ["gfx1152"], None)
    assert last["boards"][0]["name"] == "Board of gfx1152"


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
