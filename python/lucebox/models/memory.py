"""The memory plan of a model, as numbers and as a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from lucebox.sizes import show_size

__all__ = ["ExpertPlan", "KvFit", "MemoryPlan", "PlanEntry"]


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


# Share of a layer's experts in device memory, and the share of a token's experts that a cache finds there: measured by
# others for a mixture of 384 experts on plain text. Straight lines between the points.
HITS = ((0.0, 0.0), (0.0625, 0.366), (0.19, 0.741), (0.38, 0.894), (0.635, 0.962), (1.0, 1.0))


@dataclass(frozen=True, slots=True)
class ExpertPlan:
    """Where the experts of a mixture are."""

    experts: int
    """Experts of a layer."""
    used: int
    """Experts of a layer that a token chooses."""
    slots: int
    """Experts of a layer that device memory holds."""
    layers: int
    slot_bytes: int
    """One expert of every layer."""
    host_bytes: int
    """Host memory with all experts; 0: all are in device memory."""
    is_pinned: bool = True
    """Whether the system pinned the host memory, which is known after the load. Otherwise a host thread copies missing
    experts to a small pinned area, from which the device takes them."""
    profile_hits: float | None = None
    """Share of a token's experts among those that earlier runs chose most, as many as there are slots; None without
    earlier runs."""

    @property
    def share(self) -> float:
        """Share of the experts in device memory."""
        return self.slots / self.experts

    @property
    def expected_hits(self) -> float:
        """Share of a token's experts that are expected in device memory, once text has filled it."""
        for (left, low), (right, high) in pairwise(HITS):
            if self.share <= right:
                return max(low + (self.share - left) / (right - left) * (high - low), self.profile_hits or 0.0)
        return 1.0

    @property
    def expected_link_bytes(self) -> float:
        """Bytes that a token is expected to copy from host memory."""
        return (1 - self.expected_hits) * self.used * self.slot_bytes

    def __str__(self) -> str:
        if not self.host_bytes:
            return f"all {self.experts} experts of each layer are in device memory"
        text = (
            f"{self.slots} of the {self.experts} experts of each layer are in device memory ({self.share:.0%}); all "
            f"are in {show_size(self.host_bytes)} of {'pinned ' if self.is_pinned else ''}host memory. A token is "
            f"expected to find {self.expected_hits:.0%} of its {self.used} and to copy "
            f"{show_size(round(self.expected_link_bytes))}"
        )
        if self.profile_hits is None:
            return text
        return f"{text}. At load, the slots have the experts of {self.profile_hits:.0%} of the choices in earlier runs"

    @property
    def note(self) -> str | None:
        """Why copies are slower than they could be; None if the system pinned the memory."""
        if self.is_pinned:
            return None
        return (
            f"the system did not pin {show_size(self.host_bytes)} for experts: a host thread copies missing experts to "
            "a pinned area of a few, in every layer of every step, which is slow; raise the limit of locked memory "
            "(ulimit -l, of a container --ulimit memlock=-1), or on WSL2 the memory of the virtual machine"
        )


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
    n_layers: int
    context: int
    max_context: int
    """Maximum of the model, in tokens."""
    kv_tokens: int
    """Tokens of the KV cache, which all sessions share."""
    window_sessions: int
    """Sessions for whose windows the KV cache has pages; 0: no layer has a window."""
    largest_context: int
    """The longest context that fits, in tokens."""
    kv_fits: tuple[KvFit, ...]
    """What fits in the same memory with each KV type, largest type first."""
    experts: ExpertPlan | None = None
    """Where the experts of a mixture are; None for other models."""
    parts: tuple[MemoryPlan, ...] = ()
    """The plan of each device, if the model is divided among several. The other fields are their sums."""
    vision: MemoryPlan | None = None
    """The plan of a vision tower on a device of its own, which the other fields do not count."""

    @classmethod
    def from_engine(cls, plan: Mapping[str, Any]) -> MemoryPlan:
        entries = tuple(PlanEntry(*entry) for entry in plan["entries"])
        fits = tuple(KvFit(*fit) for fit in plan["kv_fits"])
        experts = None if plan["experts"] is None else ExpertPlan(*plan["experts"])
        parts = tuple(cls.from_engine(part) for part in plan["parts"])
        vision = None if plan["vision"] is None else cls.from_engine(plan["vision"])
        return cls(
            **{**plan, "entries": entries, "kv_fits": fits, "experts": experts, "parts": parts, "vision": vision}
        )

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
        n = 1 + max(0, self.available_bytes - self.mapped_bytes - self.total_bytes) // max(1, self.session_bytes)
        return min(n, self.window_sessions or n)

    def __str__(self) -> str:
        plans = [*(self.parts or [replace(self, vision=None)]), *([] if self.vision is None else [self.vision])]
        if len(plans) > 1:
            return "\n\n".join(map(str, plans))
        mapped = ("weights (mapped)", self.mapped_bytes, "read from the file as needed")
        rows = [mapped] if self.mapped_bytes else []
        rows += [(entry.name, entry.bytes, entry.detail) for entry in self.entries]
        available = f"of {_mib(self.available_bytes)} available ({self.place})"
        rows.append(("total", self.mapped_bytes + self.total_bytes, available))
        lines = [f"{name:<18}{_mib(size):>14}  {detail}" for name, size, detail in rows]
        if self.experts is not None and self.experts.host_bytes:
            lines.append(str(self.experts))
        return "\n".join(lines)


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"
