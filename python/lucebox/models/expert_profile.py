"""How often a mixture's experts were chosen, from process to process: at load, the experts that were chosen most take
the slots of device memory. One file per model (MeasuredFile). No bit of a result depends on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lucebox import _engine
from lucebox.models.measured_file import MeasuredFile
from lucebox.models.memory import ExpertPlan, MemoryPlan

__all__ = ["ExpertProfile"]

FORMAT = 1
MAX_CHOICES = 10_000_000
"""Choices of a layer: beyond them, all counts are halved, so that newer texts count more."""

Uses = list[list[int]]


class ExpertProfile:
    """The file of one model."""

    def __init__(self, path: Path, experts: ExpertPlan) -> None:
        """path: the model's file or folder."""
        self._experts = experts
        layout = _engine.Engine.layout_of(str(path))
        key = {"format": FORMAT, "model": layout, "layers": experts.layers, "experts": experts.experts}
        self._file = MeasuredFile(key, "experts-")
        self.path = self._file.path

    @classmethod
    def of_plan(cls, path: Path, plan: MemoryPlan) -> ExpertProfile | None:
        """The file of the model at `path`; None if all its experts are in device memory."""
        if plan.experts is None or not plan.experts.host_bytes:
            return None
        return cls(path, plan.experts)

    def load(self) -> Uses | None:
        """[layer][expert] choices; a prediction block's layers come last. None without a file of this model."""
        uses: Uses | None = self._file.read().get("uses")
        return uses if self._is_valid(uses) else None

    def save(self, engine: _engine.Engine) -> None:
        """Saves the engine's counts, unless it has computed nothing."""
        uses = engine.expert_uses
        largest = max(map(sum, uses), default=0)
        if largest == 0:
            return
        while largest > MAX_CHOICES:
            uses, largest = [[n // 2 for n in layer] for layer in uses], largest // 2
        self._file.write(uses=uses)

    def share_of_slots(self) -> float | None:
        """The share of all choices that the experts chosen most have, as many as the plan has slots; None without a
        file of this model."""
        uses = self.load()
        if uses is None:
            return None
        layers = uses[: self._experts.layers]
        in_slots = sum(sum(sorted(layer, reverse=True)[: self._experts.slots]) for layer in layers)
        return in_slots / max(1, sum(map(sum, layers)))

    def _is_valid(self, uses: Any) -> bool:
        return (
            isinstance(uses, list)
            and len(uses) >= self._experts.layers
            and all(isinstance(layer, list) and len(layer) == self._experts.experts for layer in uses)
            and all(type(n) is int and 0 <= n <= 2 * MAX_CHOICES for layer in uses for n in layer)
        )
