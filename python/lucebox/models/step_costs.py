"""Cache of step costs, which a model's first session measures: one JSON file per model, drafter, device and build. A
file that is damaged or of another format is replaced by a new measurement."""

from __future__ import annotations

import hashlib
import json
import math
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from lucebox import _engine
from lucebox.cache import step_costs_folder
from lucebox.errors import FormatError
from lucebox.regular_files import read_regular

__all__ = ["StepCostsFile"]

FORMAT = 2
MAX_BYTES = 1 << 20
OPTIONS = ("threads", "isa", "activations", "kv", "prefill_chunk", "decode_path", "draft_budget")


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

    def read(self) -> dict[str, Any] | None:
        """The costs, for `Engine.step_costs`; None if there are none for this model."""
        try:
            document = json.loads(read_regular(self.path, MAX_BYTES))
        except (OSError, ValueError, FormatError):
            return None
        if not isinstance(document, dict) or document.get("key") != self._key:
            return None
        costs = document.get("costs")
        return costs if _is_valid(costs) else None

    def write(self, costs: object) -> None:
        """Saves `Engine.step_costs`. If the folder is not writable, the next start measures again."""
        text = json.dumps({"key": self._key, "costs": costs}, indent=1)
        temporary = self.path.with_suffix(".part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(text)
            temporary.replace(self.path)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


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
