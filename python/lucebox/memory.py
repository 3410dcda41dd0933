"""The memory plan of a model, as numbers and as a table; sizes as people write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lucebox.errors import InvalidRequestError

__all__ = ["MemoryPlan", "PlanEntry", "parse_size"]

_UNITS = {"": 1} | {
    prefix + unit: base ** (power + 1)
    for unit, base in (("b", 1000), ("ib", 1024))
    for power, prefix in enumerate("kmgt")
}


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One reservation made at load."""

    name: str
    bytes: int
    detail: str
    per_session: bool
    """Whether every session makes this reservation. Other reservations are made once per engine."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """All memory of an engine and one session. Nothing is reserved later."""

    entries: tuple[PlanEntry, ...]
    total_bytes: int
    """Private memory: the sum of the entries."""
    place: str
    """The device: cpu, cuda:0."""
    mapped_bytes: int
    """Weights read from the mapped file, shared with the system's page cache; 0 on a GPU."""
    available_bytes: int
    """Free memory of the device when the plan was made."""
    context: int
    max_context: int
    """Maximum of the model, in tokens."""
    largest_context: int
    """The longest context that fits, in tokens."""

    @classmethod
    def from_engine(cls, plan: Mapping[str, Any]) -> MemoryPlan:
        entries = tuple(PlanEntry(*entry) for entry in plan["entries"])
        return cls(entries=entries, **{name: value for name, value in plan.items() if name != "entries"})

    def __str__(self) -> str:
        mapped = ("weights (mapped)", self.mapped_bytes, "read from the file as needed")
        rows = [mapped] if self.mapped_bytes else []
        rows += [(entry.name, entry.bytes, entry.detail) for entry in self.entries]
        available = f"of {_mib(self.available_bytes)} available ({self.place})"
        rows.append(("total", self.mapped_bytes + self.total_bytes, available))
        return "\n".join(f"{name:<18}{_mib(size):>14}  {detail}" for name, size, detail in rows)


def parse_size(size: str | int) -> int:
    """Bytes of a size: "24GiB", "24 GB", "512MiB", or a number of bytes.

    Raises:
        InvalidRequestError: neither, or less than a byte.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmgt]i?b)?", str(size).strip().lower())
    n_bytes = int(float(found[1]) * _UNITS[found[2] or ""]) if found else 0
    if n_bytes < 1:
        raise InvalidRequestError(f"a size is a number of bytes, or has a unit, as 24GiB, 24GB or 512MiB; got {size!r}")
    return n_bytes


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
