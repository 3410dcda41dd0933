"""Loads a scorer beside its target: first, because the target takes all memory that is left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lucebox.compression.scorer import Scorer
from lucebox.errors import OutOfMemoryError
from lucebox.hub import Progress
from lucebox.memory import MemoryPlan
from lucebox.options import EngineOptions
from lucebox.sizes import parse_size, show_size

__all__ = ["load_beside", "options_beside", "shared_options", "without_room"]


def load_beside(options: EngineOptions, *, offline: bool, progress: Progress | None) -> Scorer | None:
    """The scorer of the option prefill_drafter, on the target's device; None without one."""
    if options.prefill_drafter is None:
        return None
    return Scorer(options.prefill_drafter, offline=offline, progress=progress, **shared_options(options))


def shared_options(options: EngineOptions) -> dict[str, Any]:
    """The options that a scorer takes from its target."""
    names = ("device", "pack", "threads", "activations", "isa", "memory_limit")
    return {name: getattr(options, name) for name in names}


def options_beside(options: EngineOptions, scorer: Scorer | None) -> EngineOptions:
    """The options of the target with the memory that its scorer leaves."""
    if scorer is None or options.memory_limit is None:
        return options
    return replace(options, memory_limit=limit_beside(parse_size(options.memory_limit), scorer.memory_plan))


def limit_beside(limit: int, scorer: MemoryPlan) -> int:
    return max(1, limit - scorer.total_bytes)


def without_room(error: OutOfMemoryError, scorer: Scorer) -> OutOfMemoryError:
    """The target's error, with the memory that its scorer takes."""
    return OutOfMemoryError(
        f"{error}. Beside it, the scorer {scorer.name} takes {show_size(scorer.memory_plan.total_bytes)} with a context "
        f"of {scorer.memory_plan.context} tokens: name a smaller prefill_drafter, a smaller context of the target, or "
        "no scorer"
    )
