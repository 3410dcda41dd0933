"""Targets: the GPU families that lucebox has packs for, and which pack runs on which chip.

The table, targets.json, is generated from targets/*/target.toml and lists the packs released with this version. For a
pack of another target, its own manifest decides where it runs. This module inspects neither the machine nor the
installed packs.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lucebox.errors import InvalidRequestError

__all__ = [
    "NAMES",
    "TARGETS",
    "Board",
    "Capabilities",
    "Target",
    "find",
    "find_board",
    "fits",
    "serves",
    "serving",
    "vendor_of",
]

# Every chip of these architectures is a Tegra. 8.8 is included because nothing documents it as a desktop chip.
TEGRA = frozenset({"sm_72", "sm_87", "sm_88", "sm_110"})
# Vendor -> how its compilers name architectures.
ARCHITECTURES = {"nvidia": r"sm_\d+a?", "amd": r"gfx\d+", "sim": r"sim"}


@dataclass(frozen=True, slots=True)
class Board:
    """A product with this chip; a figure is None if the maker does not publish it."""

    name: str
    sm_count: int | None
    memory_gb: float | None
    bandwidth_gb_s: float | None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Hardware features that the kernels of a pack may use."""

    bf16: bool
    matrix: str
    async_copy: bool
    fp8: bool
    fp4: bool
    tma: bool
    clusters: bool
    shared_block_bytes: int
    warp_size: int


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU family; one pack is compiled for it."""

    name: str
    slug: str
    vendor: str
    architecture: str
    min_driver: str
    hosts: tuple[str, ...]
    boards: tuple[Board, ...]
    capabilities: Capabilities

    @property
    def install(self) -> str:
        """The command that installs its pack."""
        return f"pip install 'lucebox[{self.slug}]'"


def _load() -> tuple[Target, ...]:
    table = json.loads(Path(__file__).with_name("targets.json").read_text(encoding="utf-8"))
    return tuple(
        Target(
            **{key: item[key] for key in ("name", "slug", "vendor", "architecture", "min_driver")},
            hosts=tuple(item["hosts"]),
            boards=tuple(Board(**board) for board in item["boards"]),
            capabilities=Capabilities(**item["capabilities"]),
        )
        for item in table["targets"]
    )


# NVIDIA and AMD by number, then sim.
TARGETS = _load()
NAMES = tuple(target.name for target in TARGETS)


def find(name: str) -> Target | None:
    """The target with this name or slug: sm_86 or sm86."""
    return next((target for target in TARGETS if name in (target.name, target.slug)), None)


def find_board(name: str) -> tuple[Target, Board]:
    """The board with this name, case-insensitive. Its last words suffice ("RTX 3090"), as do any words unique to one
    board ("H200").

    Raises:
        InvalidRequestError: no board has this name, or several have these words.
    """
    boards = [(target, board) for target in TARGETS for board in target.boards]
    words = name.lower().split()
    named = [one for one in boards if words and one[1].name.lower().split()[-len(words) :] == words]
    having = named or [one for one in boards if words and set(words) <= set(one[1].name.lower().split())]
    if len(having) == 1:
        return having[0]
    if not having:
        raise InvalidRequestError(f"there is no board {name!r}; `lucebox targets` lists them")
    listed = ", ".join(board.name for _, board in having)
    raise InvalidRequestError(f"{len(having)} boards have the words {name!r}: {listed}")


def serving(device: str) -> tuple[Target, ...]:
    """The targets whose packs run on a chip of this architecture ("sm_89", "gfx1151"), best first: its own, then the
    nearest older ones. Empty if no pack runs."""
    fitting = [target for target in TARGETS if serves(target.name, device)]
    return tuple(sorted(fitting, key=lambda target: -_number(target.name)))


def serves(name: str, device: str) -> Literal["exact", "compatible"] | None:
    """How the pack of a target runs on a chip of this architecture; None if it does not."""
    target = find(name)
    return None if target is None else fits(target.architecture, device)


def fits(architecture: str, device: str) -> Literal["exact", "compatible"] | None:
    """How code for `architecture` ("sm_90a", the compiler's name) runs on a chip ("sm_90"), None if it does not. CUDA
    programming guide, "Binary Compatibility": a cubin runs on chips of the same major and an equal or higher minor
    capability, between desktop chips only; "Feature-Set Compiler Targets": code with the `a` suffix runs on no other.
    AMD documents no such rule for these chips.
    """
    if vendor_of(architecture) is None:
        return None
    if architecture in (device, f"{device}a"):
        return "exact"
    if not re.fullmatch(r"sm_\d+", architecture) or not re.fullmatch(r"sm_\d+", device):
        return None
    if architecture in TEGRA or device in TEGRA:
        return None
    code, chip = _number(architecture), _number(device)
    return "compatible" if code // 10 == chip // 10 and code < chip else None


def vendor_of(architecture: str) -> str | None:
    """The vendor of an architecture; None if the name matches no vendor's pattern."""
    return next((vendor for vendor, form in ARCHITECTURES.items() if re.fullmatch(form, architecture)), None)


def _number(name: str) -> int:
    """sm_86 -> 86, gfx1151 -> 1151, sim -> 0."""
    return int(re.sub(r"\D", "", name) or 0)
