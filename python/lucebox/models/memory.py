"""The memory plan of a model, as numbers and as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["KvFit", "MemoryPlan", "PlanEntry"]


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One reservation made at load."""

    name: str
    bytes: int
    detail: str
    per_session: bool
    """Whether every session makes this reservation. Other reservations are made once per engine."""


@dataclass(frozen=True, slots=True)
class KvFit:
    """A KV type that the model's heads support."""

    kv: str
    token_bytes: int
    """KV bytes per token of the layers that keep all tokens, including a draft model's."""
    largest_context: int
    """The longest context that fits, in tokens; 0: none."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """All memory of an engine and one session. Nothing is allocated later."""

    entries: tuple[PlanEntry, ...]
    total_bytes: int
    """Private memory: the sum of the entries."""
    place: str
    """The device: cpu, cuda:0; several: cuda:0,cuda:1."""
    mapped_bytes: int
    """Weights read from the mapped file, shared with the system's page cache; 0 on a GPU."""
    available_bytes: int
    """Free memory of the device when the plan was made."""
    bytes_per_token: int
    """Weights that a decoded token reads: of a mixture, only the chosen experts."""
    context: int
    max_context: int
    """Maximum of the model, in tokens."""
    kv_tokens: int
    """Tokens of the KV cache, which all sessions share."""
    largest_context: int
    """The longest context that fits, in tokens."""
    kv_fits: tuple[KvFit, ...]
    """What fits in the same memory with each KV type, largest type first."""
    parts: tuple[MemoryPlan, ...] = ()
    """The plan of each device, if the model is divided among several. The other fields are their sums."""

    @classmethod
    def from_engine(cls, plan: Mapping[str, Any]) -> MemoryPlan:
        entries = tuple(PlanEntry(*entry) for entry in plan["entries"])
        fits = tuple(KvFit(*fit) for fit in plan["kv_fits"])
        parts = tuple(cls.from_engine(part) for part in plan["parts"])
        return cls(**{**plan, "entries": entries, "kv_fits": fits, "parts": parts})

    def bytes_of(self, name: str) -> int:
        """Bytes of the entry of this name; 0 without one."""
        return sum(entry.bytes for entry in self.entries if entry.name == name)

    def bytes_with(self, sessions: int) -> int:
        """Private memory with this many sessions."""
        return self.total_bytes + (sessions - 1) * self.session_bytes

    @property
    def session_bytes(self) -> int:
        """Memory of one session, in bytes."""
        return sum(entry.bytes for entry in self.entries if entry.per_session)

    @property
    def max_sessions(self) -> int:
        """Number of sessions that fit in the free memory beside the weights, at least 1."""
        if self.parts:
            return min(part.max_sessions for part in self.parts)
        return 1 + max(0, self.available_bytes - self.mapped_bytes - self.total_bytes) // max(1, self.session_bytes)

    def __str__(self) -> str:
        if self.parts:
            return "\n\n".join(map(str, self.parts))
        mapped = ("weights (mapped)", self.mapped_bytes, "read from the file as needed")
        rows = [mapped] if self.mapped_bytes else []
        rows += [(entry.name, entry.bytes, entry.detail) for entry in self.entries]
        available = f"of {_mib(self.available_bytes)} available ({self.place})"
        rows.append(("total", self.mapped_bytes + self.total_bytes, available))
        return "\n".join(f"{name:<18}{_mib(size):>14}  {detail}" for name, size, detail in rows)


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
