"""Scorers of prompt compression that several models of a server use together."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lucebox.compression.scorer import Scorer
from lucebox.errors import OutOfMemoryError
from lucebox.models.hub import Progress
from lucebox.models.planning import Plan, plan_memory, scorer_fields
from lucebox.models.resolve import resolve
from lucebox.options import EngineOptions, parse_layers
from lucebox.serve.model_spec import ModelSpec
from lucebox.serve.running_model import bytes_in_use
from lucebox.sizes import parse_size

__all__ = ["SharedScorer", "share_scorers"]


class SharedScorer:
    """The scorer of several models on one device. It loads with the first of them and stays in memory until close()."""

    def __init__(self, plan: Plan, options: EngineOptions) -> None:
        """plan: of one of its models, whose options these are."""
        assert plan.scorer is not None and options.prefill_drafter is not None
        self.name = resolve(options.prefill_drafter, offline=True).name  # the plan has downloaded what was missing
        self.device = plan.memory.place
        self.n_bytes = bytes_in_use(plan.scorer.memory, 1)
        self._model = options.prefill_drafter
        self._layers = options.prefill_layers
        self._options = {**scorer_fields(options), "memory_limit": None, "context": plan.scorer.memory.context}
        self._lock = threading.Lock()
        self._scorer: Scorer | None = None

    def loaded(self, progress: Progress | None = None) -> Scorer:
        """The scorer; the first call loads it.

        Raises:
            LuceboxError: as `Scorer`.
        """
        with self._lock:
            if self._scorer is None:
                layers = None if self._layers is None else parse_layers(self._layers)
                self._scorer = Scorer(self._model, layers=layers, offline=True, progress=progress, **self._options)
            return self._scorer

    def close(self) -> None:
        """Frees its memory, after its models are closed."""
        with self._lock:
            if self._scorer is not None:
                self._scorer.close()
                self._scorer = None


def share_scorers(specs: Sequence[ModelSpec], progress: Progress | None = None) -> list[ModelSpec]:
    """The models, where those with the same scorer beside them on the same device share it. The limit of each device is
    reduced by its shared scorers.

    Raises:
        ModelNotFoundError, HubError, FormatError, UnsupportedError: as `LLM`.
    """
    plans = {i: plan for i, spec in enumerate(specs) if (plan := _plan_beside(spec, progress)) is not None}
    groups: dict[Any, list[int]] = {}
    for i, plan in plans.items():
        groups.setdefault(_key(specs[i].options, plan), []).append(i)
    found = list(specs)
    reserved: dict[str, int] = {}
    for group in groups.values():
        if len(group) > 1:
            scorer = SharedScorer(plans[group[0]], specs[group[0]].options)
            reserved[scorer.device] = reserved.get(scorer.device, 0) + scorer.n_bytes
            for i in group:
                found[i] = replace(found[i], scorer=scorer)
    if not reserved:
        return found
    for i, spec in enumerate(found):
        plan = plan_memory(spec.model, offline=spec.offline, progress=progress, **_alone(spec))
        if (n_bytes := reserved.get(plan.memory.place)) is not None:
            found[i] = replace(spec, limit=max(1, plan.memory.available_bytes - n_bytes))
    return found


def _plan_beside(spec: ModelSpec, progress: Progress | None) -> Plan | None:
    """The plan of a model on one device with its scorer beside it; None if it is another one."""
    if spec.options.prefill_drafter is None:
        return None
    try:
        plan = plan_memory(spec.model, offline=spec.offline, progress=progress, **spec.keywords())
    except OutOfMemoryError:
        return None  # plan_models reports it
    is_beside = plan.scorer is not None and not plan.scorer.is_swapped
    return plan if is_beside and "," not in plan.memory.place else None


def _key(options: EngineOptions, plan: Plan) -> Any:
    assert options.prefill_drafter is not None and plan.scorer is not None
    path = resolve(options.prefill_drafter, offline=True).path
    fields = {**scorer_fields(options), "memory_limit": None, "device": plan.memory.place}
    return path, options.prefill_layers, tuple(sorted(fields.items(), key=lambda field: field[0]))


def _alone(spec: ModelSpec) -> dict[str, Any]:
    """The options of a model without a scorer and without a limit of its own."""
    limit = None if spec.limit is None else parse_size(spec.limit)
    return spec.with_options(prefill_drafter=None, prefill_compression="off").keywords() | {"memory_limit": limit}
