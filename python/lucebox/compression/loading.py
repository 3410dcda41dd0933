"""Loads a scorer beside its target: first, because the target takes all memory that is left."""

from __future__ import annotations

from dataclasses import replace

from lucebox.compression.scorer import Scorer
from lucebox.hub import Progress
from lucebox.options import EngineOptions, parse_layers
from lucebox.planning import scorer_fields
from lucebox.sizes import parse_size

__all__ = ["load_beside", "options_beside"]


def load_beside(options: EngineOptions, *, offline: bool, progress: Progress | None) -> Scorer | None:
    """The scorer of the option prefill_drafter, on the target's device; None without one."""
    if options.prefill_drafter is None:
        return None
    layers = None if options.prefill_layers is None else parse_layers(options.prefill_layers)
    return Scorer(options.prefill_drafter, layers=layers, offline=offline, progress=progress, **scorer_fields(options))


def options_beside(options: EngineOptions, scorer: Scorer | None) -> EngineOptions:
    """The options of the target with the memory that its scorer leaves."""
    if scorer is None or options.memory_limit is None:
        return options
    left = parse_size(options.memory_limit) - scorer.memory_plan.total_bytes
    return replace(options, memory_limit=max(1, left))
