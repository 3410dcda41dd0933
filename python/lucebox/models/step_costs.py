"""What is known of a step of a model with its drafter on a device, from process to process: its costs, which a first
session measures, and how often drafts were accepted. One JSON file per model, drafter, device and build. A file that is
damaged or of another format is replaced."""

from __future__ import annotations

import hashlib
import json
import math
import os
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from lucebox import _engine
from lucebox.cache import step_costs_folder
from lucebox.errors import FormatError, InvalidRequestError
from lucebox.regular_files import read_regular

__all__ = ["StepCostsFile"]

FORMAT = 3
MAX_BYTES = 1 << 20
OPTIONS = ("threads", "isa", "activations", "kv", "prefill_chunk", "decode_path", "draft_budget", "batch_invariant",
           "expert_slots")  # fmt: skip


class StepCostsFile:
    """The file of one opened model."""

    def __init__(self, engine: _engine.Engine, draft: str, device: str, kernels: str) -> None:
        """draft: its label; device: the name of the chip; kernels: the pack's, or the CPU's."""
        library = Path(_engine.__file__).stat()
        self._key = {
            "format": FORMAT,
            "model": engine.layout,
            "draft": draft,
            "device": device,
            "kernels": kernels,
            "engine": [library.st_size, library.st_mtime_ns],
            **{name: engine.options[name] for name in OPTIONS},
        }
        digest = hashlib.sha256(json.dumps(self._key, sort_keys=True).encode()).hexdigest()
        self.path = step_costs_folder() / f"{digest[:32]}.json"

    def load(self, engine: _engine.Engine) -> bool:
        """Gives the engine the costs and what drafts showed. Whether the file has costs of this model."""
        try:
            document = json.loads(read_regular(self.path, MAX_BYTES))
        except (OSError, ValueError, RecursionError, FormatError):
            return False
        if not isinstance(document, dict) or document.get("key") != self._key or not _is_valid(document.get("costs")):
            return False
        engine.step_costs = document["costs"]
        experience = document.get("experience")
        if isinstance(experience, dict) and all(map(_are_numbers, experience.values())):
            with suppress(InvalidRequestError):  # it is learned again
                engine.draft_experience = experience
        return True

    def save(self, engine: _engine.Engine) -> None:
        """Saves the engine's costs and what drafts showed. If the folder is not writable, the next start measures and
        learns again."""
        document = {"key": self._key, "costs": engine.step_costs, "experience": engine.draft_experience}
        temporary = self.path.with_suffix(f".{os.getpid()}.part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(document, indent=1))
            temporary.replace(self.path)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


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
