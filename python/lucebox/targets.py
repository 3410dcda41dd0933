"""The GPU families lucebox has packs for, and which pack's code a chip can run.

The table, targets.json, is generated from targets/*/target.toml. Nothing here looks at the machine or at what is
installed.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Board", "Capabilities", "Target", "find", "parse", "runs_on", "serving", "targets"]

# Every chip of these architectures is a Tegra. 8.8 is among them because nothing documents it as a desktop chip.
TEGRA = frozenset({"sm_87", "sm_88", "sm_110"})


@dataclass(frozen=True, slots=True)
class Board:
    """A product with this chip; a figure is None where its maker publishes none."""

    name: str
    sm_count: int | None
    memory_gb: float | None
    bandwidth_gb_s: float | None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the kernels of a pack may use."""

    bf16: bool
    matrix: str
    async_copy: bool
    fp4: bool
    tma: bool
    clusters: bool
    shared_block_bytes: int
    warp_size: int


@dataclass(frozen=True, slots=True)
class Target:
    """A GPU family: what one pack is compiled for."""

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
        """The line that installs its pack."""
        return f"pip install 'lucebox[{self.slug}]'"


@functools.cache
def targets() -> tuple[Target, ...]:
    """All targets, NVIDIA and AMD by number, then sim."""
    return parse(Path(__file__).with_name("targets.json").read_text(encoding="utf-8"))


def parse(text: str) -> tuple[Target, ...]:
    """The targets of a targets.json."""
    return tuple(
        Target(
            **{key: item[key] for key in ("name", "slug", "vendor", "architecture", "min_driver")},
            hosts=tuple(item["hosts"]),
            boards=tuple(Board(**board) for board in item["boards"]),
            capabilities=Capabilities(**item["capabilities"]),
        )
        for item in json.loads(text)["targets"]
    )


def find(name: str) -> Target | None:
    """The target of that name or slug: sm_86 or sm86."""
    return next((target for target in targets() if name in (target.name, target.slug)), None)


def serving(device: str, among: Iterable[Target] | None = None) -> tuple[Target, ...]:
    """The targets whose packs run on a chip of this architecture ("sm_89", "gfx1151"), best first.

    The chip's own comes first, then the nearest older one. Nothing serves it: no pack runs there.
    """
    fitting = [t for t in (targets() if among is None else among) if runs_on(t.architecture, device)]
    return tuple(sorted(fitting, key=lambda t: (t.name != device, -_number(t.name))))


def runs_on(code: str, device: str) -> bool:
    """Whether code compiled for one architecture runs on a chip of another, by what the vendors document.

    NVIDIA, CUDA programming guide, "Binary Compatibility": a cubin runs on chips of the same major and a higher or
    equal minor capability; this holds between desktop chips only, and not for code with an `a` suffix, which
    runs on its own architecture alone. AMD: its own architecture alone.
    """
    if code.removesuffix("a") == device:
        return True
    if code in TEGRA or device in TEGRA or not (re.fullmatch(r"sm_\d+", code) and re.fullmatch(r"sm_\d+", device)):
        return False
    return _number(code) // 10 == _number(device) // 10 and _number(code) < _number(device)


def _number(name: str) -> int:
    """sm_86 -> 86, gfx1151 -> 1151, sim -> 0."""
    return int(re.sub(r"\D", "", name) or 0)
