"""The memory of several models that share devices: what each takes, and which ones must leave for another one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lucebox.errors import InvalidRequestError, LuceboxError, OutOfMemoryError
from lucebox.models.hub import Progress
from lucebox.models.planning import Plan, plan_memory, scorer_fields
from lucebox.models.resolve import resolve
from lucebox.options import EngineOptions
from lucebox.serve.model_spec import ModelSpec
from lucebox.serve.running_model import bytes_in_use, fitting_slots
from lucebox.serve.shared_scorer import SharedScorer
from lucebox.sizes import parse_size

__all__ = ["PlannedModel", "needed_room", "plan_models"]

MIN_CONTEXT = 4096
"""Tokens that a model keeps at least when models share a device."""


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model with the memory that it takes when it is loaded."""

    spec: ModelSpec
    """Its options have the planned context and KV cache, so that the load takes what was planned."""
    name: str
    """Its name in the APIs."""
    loaded_by: str
    """The name of its file, hub id or catalog entry."""
    device: str
    context: int
    max_context: int
    """The model's own maximum, in tokens."""
    slots: int
    n_bytes: int
    """Memory with all slots, and of a scorer of its own beside the model. Weights that are mapped from the file count,
    too."""
    available_bytes: int
    """Memory of the device that all models may use together."""


def plan_models(specs: Sequence[ModelSpec], progress: Progress | None = None) -> list[PlannedModel]:
    """Plans the memory of each model. Models without a context, a KV cache or a memory limit of their own share what
    the others leave on their device, if that suffices for all; otherwise each is planned alone, and they take turns in
    memory. A scorer that several models name is shared, and always has its memory.

    Raises:
        OutOfMemoryError: a model does not fit even alone; the message names it.
        InvalidRequestError: other models are on the devices of one that is on several devices.
        ModelNotFoundError, HubError, FormatError, UnsupportedError: as `LLM`.
    """
    specs = _share_scorers(specs, progress)
    alone = [_plan(spec, progress) for spec in specs]
    devices = [set(one.device.split(",")) for one in alone]
    for i, one in enumerate(alone):
        if len(devices[i]) > 1 and any(devices[i] & other for j, other in enumerate(devices) if j != i):
            raise InvalidRequestError(
                f"{one.name} is on several devices, {one.device}, and such a model shares none of them: start a server "
                "for each model, or name one device"
            )
    found = list(alone)
    for device in dict.fromkeys(one.device for one in alone):
        group = [i for i, one in enumerate(alone) if one.device == device]
        shared = [i for i in group if _is_elastic(specs[i].options)]
        available = _available(specs[group[0]], alone[group[0]], progress)
        if len(group) > 1 and shared and sum(alone[i].n_bytes for i in group) > available:
            minimum = {i: _minimum(specs[i], progress) for i in shared}
            room = available - sum(alone[i].n_bytes for i in group if i not in minimum) - sum(minimum.values())
            more = {i: alone[i].n_bytes - n_bytes for i, n_bytes in minimum.items()}
            for i, share in _shares(room, more).items() if room >= 0 else ():
                if share < more[i]:
                    found[i] = _plan(specs[i].with_options(memory_limit=minimum[i] + share), progress)
        for i in group:
            found[i] = replace(found[i], available_bytes=available)
    return found


def _share_scorers(specs: Sequence[ModelSpec], progress: Progress | None) -> list[ModelSpec]:
    """The models; those that have the same scorer on the same device share it. The limit of each device is reduced by
    its shared scorers.

    Raises:
        ModelNotFoundError, HubError, FormatError, UnsupportedError: as `LLM`.
    """
    plans = {i: plan for i, spec in enumerate(specs) if (plan := _plan_beside(spec, progress)) is not None}
    groups: dict[tuple[object, ...], list[int]] = {}
    for i, plan in plans.items():
        groups.setdefault(_scorer_key(specs[i].options, plan), []).append(i)
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
        plan = plan_memory(spec.model, offline=spec.offline, progress=progress, **_fields_alone(spec))
        if (n_bytes := reserved.get(plan.memory.place)) is not None:
            found[i] = replace(spec, limit=max(1, plan.memory.available_bytes - n_bytes))
    return found


def _plan_beside(spec: ModelSpec, progress: Progress | None) -> Plan | None:
    """The plan of a model whose scorer is beside it on its only device; None for other models."""
    if spec.options.prefill_drafter is None:
        return None
    try:
        plan = plan_memory(spec.model, offline=spec.offline, progress=progress, **spec.keywords())
    except OutOfMemoryError:
        return None  # plan_models reports it
    is_beside = plan.scorer is not None and not plan.scorer.is_swapped
    return plan if is_beside and "," not in plan.memory.place else None


def _scorer_key(options: EngineOptions, plan: Plan) -> tuple[object, ...]:
    """Equal for models that can share their scorers."""
    assert options.prefill_drafter is not None and plan.scorer is not None
    path = resolve(options.prefill_drafter, offline=True).path
    fields = {**scorer_fields(options), "memory_limit": None, "device": plan.memory.place}
    return path, options.prefill_layers, frozenset(fields.items())


def _fields_alone(spec: ModelSpec) -> dict[str, Any]:
    """The options of a model without a scorer and without a limit of its own."""
    limit = None if spec.limit is None else parse_size(spec.limit)
    return spec.with_options(prefill_drafter=None, prefill_compression="off").keywords() | {"memory_limit": limit}


def _shares(room: int, wanted: Mapping[int, int]) -> dict[int, int]:
    """Equal shares of the room; what one does not want goes to the others."""
    shares: dict[int, int] = {}
    for i in sorted(wanted, key=lambda i: wanted[i]):
        shares[i] = min(wanted[i], (room - sum(shares.values())) // (len(wanted) - len(shares)))
    return shares


def _is_elastic(options: EngineOptions) -> bool:
    """Whether the model takes as much memory as it gets."""
    return options.context is None and options.kv_tokens is None and options.memory_limit is None


def _minimum(spec: ModelSpec, progress: Progress | None) -> int:
    """Bytes of the model with a context of MIN_CONTEXT, or the model's own maximum."""
    try:
        return _plan(spec.with_options(context=MIN_CONTEXT), progress).n_bytes
    except LuceboxError:  # the model's maximum is shorter
        return _plan(spec, progress).n_bytes


def _available(spec: ModelSpec, planned: PlannedModel, progress: Progress | None) -> int:
    """The memory of a model's device, whatever the model's own limit."""
    if spec.options.memory_limit is not None:
        planned = _plan(spec.with_options(memory_limit=None), progress)
    return planned.available_bytes


def _plan(spec: ModelSpec, progress: Progress | None) -> PlannedModel:
    try:
        own = spec if spec.scorer is None else spec.with_options(prefill_drafter=None, prefill_compression="off")
        plan = plan_memory(spec.model, offline=spec.offline, progress=progress, **own.keywords())
        slots = fitting_slots(plan.memory, spec.settings.slots)
    except OutOfMemoryError as error:
        raise OutOfMemoryError(f"{spec.model}: {error}") from error
    loaded_by = resolve(spec.model, offline=True).name  # the plan has downloaded what was missing
    name = spec.settings.model_name or loaded_by
    memory = plan.memory
    fixed = spec.with_options(context=memory.context, kv_tokens=memory.kv_tokens)
    return PlannedModel(
        spec=replace(fixed, offline=True, settings=replace(spec.settings, model_name=name, slots=slots)),
        name=name,
        loaded_by=loaded_by,
        device=memory.place,
        context=memory.context,
        max_context=memory.max_context,
        slots=slots,
        n_bytes=bytes_in_use(memory, slots) + _scorer_bytes(plan),
        available_bytes=memory.available_bytes,
    )


def _scorer_bytes(plan: Plan) -> int:
    return 0 if plan.scorer is None or plan.scorer.is_swapped else bytes_in_use(plan.scorer.memory, 1)


def needed_room(n_bytes: int, free_bytes: int, loaded: Iterable[tuple[str, int]]) -> list[str]:
    """The names of the models to unload so that n_bytes fit: from `loaded`, (name, bytes) in the order in which they
    should leave, as many as it takes and none in vain."""
    leaving: dict[str, int] = {}
    for name, size in loaded:
        if free_bytes + sum(leaving.values()) >= n_bytes:
            break
        leaving[name] = size
    for name, size in list(leaving.items()):
        if free_bytes + sum(leaving.values()) - size >= n_bytes:
            del leaving[name]  # a later, larger one is enough
    return list(leaving)
