"""Costs of a step of a model with its drafter on a device, which a first session measures, and how often drafts were
accepted, from process to process (MeasuredFile)."""

from __future__ import annotations

import math
from contextlib import suppress
from itertools import pairwise
from typing import Any

from lucebox import _engine
from lucebox.errors import InvalidRequestError
from lucebox.models.measured_file import MeasuredFile

__all__ = ["StepCostsFile"]

FORMAT = 3
OPTIONS = ("threads", "isa", "activations", "kv", "prefill_chunk", "decode_path", "draft_budget", "batch_invariant",
           "expert_slots", "split", "link")  # fmt: skip


class StepCostsFile:
    """The file of one opened model."""

    def __init__(self, engine: _engine.Engine, draft: str, device: str, kernels: str) -> None:
        """draft: its label; device: the name of the chip; kernels: the pack's, or the CPU's."""
        self._file = MeasuredFile.of_engine(engine, OPTIONS, format=FORMAT, draft=draft, device=device, kernels=kernels)
        self.path = self._file.path

    def load(self, engine: _engine.Engine) -> bool:
        """Gives the engine the costs and what drafts showed. Whether the file has costs of this model."""
        document = self._file.read()
        if not _is_valid(document.get("costs")):
            return False
        engine.step_costs = document["costs"]
        experience = document.get("experience")
        if isinstance(experience, dict) and all(map(_are_numbers, experience.values())):
            with suppress(InvalidRequestError):  # it is learned again
                engine.draft_experience = experience
        return True

    def save(self, engine: _engine.Engine) -> None:
        """Saves the engine's costs and what drafts showed."""
        self._file.write(costs=engine.step_costs, experience=engine.draft_experience)


def _are_numbers(values: object) -> bool:
    return isinstance(values, list) and all(type(value) in (int, float) for value in values)


def _is_valid(costs: Any) -> bool:
    try:
        times = [costs["plain_ms"], *(ms for _, ms in costs["append"])]
        rows = [1, *(rows for rows, _ in costs["append"])]
        besides = [costs["draft_ms"], costs["first_ms"], costs["context_ms"]]
        return (
            costs["is_fixed"] is False
            and len(rows) > 1
            and all(type(n) is int and n <= 64 for n in rows)
            and all(one < following for one, following in pairwise(rows))
            and all(isinstance(ms, float) and 0 < ms < math.inf for ms in times)
            and all(isinstance(ms, float) and 0 <= ms < math.inf for ms in besides)
            and type(costs["draft_depth"]) is int
            and (costs["draft_depth"] == 0 or 1 < costs["draft_depth"] < 64)
            and costs["first_ms"] <= costs["draft_ms"]
        )
    except (KeyError, TypeError, ValueError):
        return False
