"""Loads a model: the device with its kernels, the engine with the first drafter that fits in memory and is worth its
cost, the text assets, and the scorer of prompt compression."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from lucebox import _engine
from lucebox.compression.compressor import Compressor
from lucebox.compression.loading import load_scorer, options_beside, plan_of_scorer
from lucebox.compression.policy import Policy
from lucebox.compression.scorer import Lender, Scorer
from lucebox.errors import FormatError, OutOfMemoryError, UnsupportedError
from lucebox.generation.loaded_model import Link, LoadedDevice, LoadedModel
from lucebox.generation.sessions import SessionPool
from lucebox.images import Processor
from lucebox.models import catalog
from lucebox.models.assets import TextAssets
from lucebox.models.decode_path import settle_decode_path
from lucebox.models.drafters import Drafters, check_draft_device, resolve_drafts
from lucebox.models.expert_profile import ExpertProfile
from lucebox.models.hub import Progress
from lucebox.models.memory import MemoryPlan
from lucebox.models.model_info import model_info
from lucebox.models.planning import with_profile
from lucebox.models.resolve import resolve
from lucebox.models.step_costs import StepCostsFile
from lucebox.models.vision import fetch_tower
from lucebox.options import EngineOptions, engine_fields
from lucebox.packs import Selection
from lucebox.packs.devices import open_pack, resolve_devices, resolve_draft_device, resolve_vision_device
from lucebox.packs.machine import processor_name

__all__ = ["load_model"]

DEFAULT_SESSIONS = 4


def load_model(
    name: str,
    wanted: EngineOptions,
    *,
    offline: bool,
    progress: Progress | None,
    shared_scorer: Scorer | None = None,
    kept: _engine.KeptWeights | None = None,
) -> LoadedModel:
    """Loads the model of a path or name, with its first session. A model loads completely or not at all.

    shared_scorer: the scorer of the option prefill_drafter, which other models use too and the caller closes.
    kept: the weights as an earlier load had them, read instead of the files if these are the same.

    Raises:
        ModelNotFoundError, HubError, FormatError, UnsupportedError, OutOfMemoryError: as `LLM`.
    """
    device = _open_device(wanted)
    resolved = resolve(name, offline=offline, progress=progress)
    tower = fetch_tower(wanted.mmproj, resolved, progress=progress)
    wanted = replace(wanted, mmproj=tower)
    drafts = resolve_drafts(wanted.draft, resolved, offline=offline, progress=progress)
    check_draft_device(wanted.draft_device, drafts)
    place = None
    if shared_scorer is None:
        place = plan_of_scorer(wanted, resolved.path, drafts, offline=offline, progress=progress)
    scorer: Scorer | None = None
    try:
        if place is not None and not place.is_swapped:
            scorer = load_scorer(wanted, offline=offline, progress=progress)
        opened = _open_with_one_of(drafts, device, resolved.path, options_beside(wanted, scorer), progress, kept)
        assets = TextAssets.load(resolved.path)
        if place is not None and place.is_swapped:
            assert device.pack is not None  # swapping exists on GPUs only
            lender = Lender(opened.engine, device.pack)
            scorer = load_scorer(wanted, offline=offline, progress=progress, lender=lender)
    except BaseException:
        if scorer is not None:
            scorer.close()
        raise
    entry = catalog.find(resolved.name) if resolved.source == "catalog" else None
    plan = with_profile(MemoryPlan.from_engine(opened.engine.plan), opened.expert_profile)
    compressor = None
    if (used := scorer or shared_scorer) is not None:
        policy = Policy.from_options(wanted)
        owns = scorer is not None
        compressor = Compressor(used, assets.tokenizer, policy, context=plan.context, owns_scorer=owns)
    return LoadedModel(
        engine=opened.engine,
        sessions=opened.sessions,
        device=opened.device,
        assets=assets,
        info=model_info(resolved.name, resolved.path, opened.engine.info, assets.tensors),
        options=_options_of(opened, replace(wanted, device=opened.device.name)),
        drafters=opened.drafters,
        memory_plan=plan,
        step_costs_file=opened.step_costs_file,
        expert_profile=opened.expert_profile,
        draft_reason=opened.draft_reason,
        path_reason=opened.path_reason,
        compressor=compressor,
        processor=_processor_of(opened.engine, wanted.mmproj),
        answer_tokens=None if entry is None else entry.answer_tokens,
    )


def _processor_of(engine: _engine.Engine, mmproj: str | None) -> Processor | None:
    """What makes the pixels for the model's vision tower; None without one."""
    if engine.tower is None or mmproj is None:
        return None
    tower = cast(Mapping[str, Any], engine.tower)
    folder = Path(mmproj) if Path(mmproj).is_dir() else Path(mmproj).parent
    return Processor.read(folder, tower["kind"], tower["unit"], tower["max_rows"])


def _open_device(wanted: EngineOptions) -> LoadedDevice:
    selections = resolve_devices(wanted.device, wanted.pack, require_gpu=wanted.require_gpu)
    draft = vision = None
    if wanted.draft_device is not None:
        draft = _open_selection(resolve_draft_device(wanted.draft_device, selections, wanted.pack))
    if wanted.vision_device is not None:
        vision = _open_selection(resolve_vision_device(wanted.vision_device, selections, wanted.pack))
    first, *others = map(_open_selection, selections)
    if vision is not None:
        first = replace(first, reason=f"{first.reason}; vision tower on {vision.name}")
    return replace(first, others=tuple(others), draft=draft, vision=vision)


def _open_selection(selection: Selection) -> LoadedDevice:
    pack, choice = open_pack(selection), selection.choice
    return LoadedDevice(
        name=selection.device,
        chip=selection.info.name if selection.info else processor_name(),
        reason="; ".join(selection.report),
        unused_gpus=selection.unused,
        pack=pack,
        # A variant's name is more specific than its target.
        pack_name=choice.pack.name if choice is not None else None if pack is None else pack.target,
        pack_manifest="" if choice is None else choice.pack.manifest_json,
        code=None if choice is None else str(choice.code.compiler),
    )


@dataclass(frozen=True, slots=True)
class _Opened:
    """An engine with its first session."""

    engine: _engine.Engine
    device: LoadedDevice
    drafters: Drafters
    sessions: SessionPool
    step_costs_file: StepCostsFile | None
    path_reason: str
    expert_profile: ExpertProfile | None
    draft_reason: str = ""


def _options_of(opened: _Opened, wanted: EngineOptions) -> EngineOptions:
    """The options as the engine resolved them."""
    resolved = {name: value for name, value in opened.engine.options.items() if hasattr(wanted, name)}
    return replace(wanted, **resolved, draft=str(opened.drafters))


def _open_with_one_of(
    drafts: Sequence[Drafters], device: LoadedDevice, path: Path, options: EngineOptions, progress: Progress | None,
    kept: _engine.KeptWeights | None,
) -> _Opened:  # fmt: skip
    """Opens the engine with the first drafter that fits and is worth its cost on this device. The last candidate must
    open."""
    left_out: list[str] = []
    unpaid: list[str] = []
    for draft in drafts:
        try:
            opened = _open(draft, device, path, options, progress, kept)
        except (FormatError, OutOfMemoryError, UnsupportedError) as error:
            if draft == drafts[-1]:
                raise
            why = "does not fit in memory" if isinstance(error, OutOfMemoryError) else f"cannot be used ({error})"
            left_out.append(f"{draft.label} {why}")
            continue
        if draft == drafts[-1] or opened.engine.draft_may_pay:
            if unpaid:
                verb = "does" if len(unpaid) == 1 else "do"
                left_out.append(f"{' and '.join(unpaid)} {verb} not pay on this device")
            return replace(opened, draft_reason="; ".join(left_out))
        del opened  # frees its memory for the next candidate
        unpaid.append(draft.label.removesuffix("+suffix"))
    raise AssertionError("there is always a last drafter")


def _open(
    drafters: Drafters, device: LoadedDevice, path: Path, options: EngineOptions, progress: Progress | None,
    kept: _engine.KeptWeights | None,
) -> _Opened:  # fmt: skip
    engine = _engine.Engine.open(
        str(path),
        pack=device.pack,
        progress=progress and partial(progress, "loading weights"),
        others=[other.pack for other in device.others if other.pack is not None],
        draft_pack=None if device.draft is None or drafters.draft_model is None else device.draft.pack,
        vision_pack=None if device.vision is None else device.vision.pack,
        vision_on_cpu=device.vision is not None and device.vision.pack is None,
        kept=kept,
        **engine_fields(options),
        **engine_fields(drafters),
    )
    plan = MemoryPlan.from_engine(engine.plan)
    device = device.as_planned(plan, options.split, [*map(Link, engine.links, engine.link_us)])
    limit = min(options.sessions or DEFAULT_SESSIONS, plan.max_sessions)
    path_reason = ""
    if device.pack is not None and device.pack.target != "sim":  # times of the simulator say nothing
        path_reason = settle_decode_path(engine, device.chip, device.kernels)
    file = None if drafters == Drafters() else StepCostsFile(engine, drafters.label, device.chip, device.kernels)
    profile = ExpertProfile.of_plan(path, plan)
    if profile is not None and (uses := profile.load()) is not None:
        engine.expert_uses = uses  # the slots get the experts that earlier runs chose most
    with _step_costs(engine, file):
        return _Opened(engine, device, drafters, SessionPool(engine, limit), file, path_reason, profile)


@contextmanager
def _step_costs(engine: _engine.Engine, file: StepCostsFile | None) -> Iterator[None]:
    """Loads step costs from an earlier start on this device; otherwise the first session measures them, and they are
    saved."""
    is_known = file is None or file.load(engine)
    yield
    if file is not None and not is_known and engine.step_costs is not None:
        file.save(engine)
