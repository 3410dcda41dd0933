"""How often a mixture's experts were chosen, from process to process: at load, the experts that were chosen most take
the slots of device memory. One JSON file per model, beside the step costs. A file that is damaged or of another format
is replaced. No bit of a result depends on it."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from lucebox import _engine
from lucebox.cache import step_costs_folder
from lucebox.errors import FormatError
from lucebox.models.memory import ExpertPlan
from lucebox.regular_files import read_regular

__all__ = ["ExpertProfile"]

FORMAT = 1
MAX_BYTES = 4 << 20
MAX_CHOICES = 10_000_000
"""Choices of a layer: beyond them, all counts are halved, so that newer texts count more."""

Uses = list[list[int]]


class ExpertProfile:
    """The file of one model."""

    def __init__(self, path: Path, experts: ExpertPlan) -> None:
        """path: the model's file or folder."""
        self._experts = experts
        self._key = {
            "format": FORMAT,
            "model": _engine.Engine.layout_of(str(path)),
            "layers": experts.layers,
            "experts": experts.experts,
        }
        digest = hashlib.sha256(json.dumps(self._key, sort_keys=True).encode()).hexdigest()
        self.path = step_costs_folder() / f"experts-{digest[:32]}.json"

    def load(self) -> Uses | None:
        """[layer][expert] choices; a prediction block's layers come last. None without a file of this model."""
        try:
            document = json.loads(read_regular(self.path, MAX_BYTES))
        except (OSError, ValueError, RecursionError, FormatError):
            return None
        if (
            not isinstance(document, dict)
            or document.get("key") != self._key
            or not self._is_valid(document.get("uses"))
        ):
            return None
        uses: Uses = document["uses"]
        return uses

    def save(self, engine: _engine.Engine) -> None:
        """Saves the engine's counts, unless it has computed nothing. If the folder is not writable, the next start
        knows less."""
        uses = engine.expert_uses
        largest = max(map(sum, uses), default=0)
        if largest == 0:
            return
        while largest > MAX_CHOICES:
            uses, largest = [[n // 2 for n in layer] for layer in uses], largest // 2
        temporary = self.path.with_suffix(f".{os.getpid()}.part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps({"key": self._key, "uses": uses}))
            temporary.replace(self.path)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

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
