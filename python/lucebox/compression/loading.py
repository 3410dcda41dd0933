"""Loads a scorer for its target. A co-resident scorer loads before the target, which takes all remaining memory. A
swapped scorer loads after the target, because it borrows the memory of the target's weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lucebox.compression.scorer import Lender, Scorer
from lucebox.models.drafters import Drafters
from lucebox.models.hub import Progress
from lucebox.models.planning import ScorerPlan, local_device, place_scorer, scorer_fields
from lucebox.models.resolve import resolve
from lucebox.options import EngineOptions, parse_layers
from lucebox.sizes import parse_size

__all__ = ["load_scorer", "options_beside", "plan_of_scorer"]


def plan_of_scorer(
    options: EngineOptions, target: Path, drafts: Sequence[Drafters], *, offline: bool, progress: Progress | None
) -> ScorerPlan | None:
    """The memory placement of the option prefill_drafter's scorer; None without a scorer."""
    if options.prefill_drafter is None:
        return None
    path = resolve(options.prefill_drafter, offline=offline, progress=progress).path
    return place_scorer(path, target, drafts, options, local_device(options))


def load_scorer(
    options: EngineOptions, *, offline: bool, progress: Progress | None, lender: Lender | None = None
) -> Scorer:
    """The scorer of the option prefill_drafter, on the target's device. lender: the target it is swapped with."""
    assert options.prefill_drafter is not None
    layers = None if options.prefill_layers is None else parse_layers(options.prefill_layers)
    return Scorer(
        options.prefill_drafter,
        layers=layers,
        lender=lender,
        offline=offline,
        progress=progress,
        **scorer_fields(options),
    )


def options_beside(options: EngineOptions, scorer: Scorer | None) -> EngineOptions:
    """The target's options, with memory_limit reduced by its scorer's memory."""
    if scorer is None or options.memory_limit is None:
        return options
    left = parse_size(options.memory_limit) - scorer.memory_plan.total_bytes
    return replace(options, memory_limit=max(1, left))
