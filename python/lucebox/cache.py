"""Where lucebox keeps files on this machine."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder", "step_costs_folder"]


def cache_folder() -> Path:
    """The folder of fetched models: LUCEBOX_CACHE, else ~/.cache/lucebox."""
    return Path(os.environ.get("LUCEBOX_CACHE") or Path.home() / ".cache" / "lucebox").expanduser()


def step_costs_folder() -> Path:
    """The folder of step costs, which a model's first start with a drafter measures."""
    return cache_folder() / "step_costs"
