"""The memory plan of a model without loading it: on a device of this machine, or for a card that is not here."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lucebox import _engine, packs
from lucebox.errors import FormatError, InvalidRequestError, OutOfMemoryError, PackError, UnsupportedError
from lucebox.models.assets import TextAssets
from lucebox.models.drafters import Drafters, check_draft_device, resolve_drafts
from lucebox.models.expert_profile import ExpertProfile
from lucebox.models.hub import Progress
from lucebox.models.memory import MemoryPlan
from lucebox.models.resolve import resolve
from lucebox.models.vision import fetch_tower
from lucebox.options import EngineOptions, check_names, engine_fields
from lucebox.packs import Selection, targets
from lucebox.packs.devices import resolve_devices, resolve_draft_device, resolve_vision_device
from lucebox.packs.planned import manifest_json
from lucebox.sizes import parse_size, show_size

__all__ = [
    "Device",
    "Plan",
    "ScorerPlan",
    "lent_memory",
    "local_device",
    "place_scorer",
    "plan_memory",
    "plan_scorer",
    "plan_sizes",
    "scorer_fields",
]

MAX_SCORER_CONTEXT = 131072


@dataclass(frozen=True, slots=True)
class Plan:
    """A memory plan, with its device and drafter."""

    memory: MemoryPlan
    kernels: str
    """The device and its kernels: "GeForce RTX 3090, pack sm_86 by nvcc 13.0.88"."""
    draft: str
    """The drafter: "none", "suffix", "mtp+suffix", "drafter.gguf"."""
    scorer: ScorerPlan | None = None
    """The scorer of prompts; None without one."""
    bandwidths_gb_s: tuple[float | None, ...] = (None,)
    """`Device.bandwidth_gb_s` of each device."""

    @property
    def max_tokens_s(self) -> float | None:
        """The speed of decoding without drafts on one device if it only read the weights; None without a bandwidth."""
        gb_s = self.bandwidths_gb_s[0]
        return None if gb_s is None or self.memory.parts else gb_s * 1e9 / self.memory.bytes_per_token

    def tokens_s_over(self, link_gb_s: float) -> float | None:
        """`max_tokens_s` if the expected copies of experts over a link of this speed follow the reads of the weights.
        None without a bandwidth, or if all experts are in device memory."""
        experts = self.memory.experts
        if self.max_tokens_s is None or experts is None or not experts.host_bytes:
            return None
        return 1 / (1 / self.max_tokens_s + experts.expected_link_bytes / (link_gb_s * 1e9))


@dataclass(frozen=True, slots=True)
class ScorerPlan:
    """The memory placement of a prompt scorer."""

    memory: MemoryPlan
    is_swapped: bool
    """Whether the scorer borrows the memory of the target's weights while it scores. Otherwise it is co-resident with
    the target, whose plan leaves room for it."""

    @property
    def parked_bytes(self) -> int:
        """Bytes of the target's weights that are parked in pinned host memory while the scorer computes."""
        return self.memory.total_bytes if self.is_swapped else 0

    @property
    def host_bytes(self) -> int:
        """Pinned host memory: the parked target weights, and the scorer's weights between prompts."""
        return self.parked_bytes + self.memory.bytes_of("weights") if self.is_swapped else 0


@dataclass(frozen=True, slots=True)
class Device:
    """The facts of a device that a plan needs."""

    name: str
    kernels: str
    """Empty for the CPU, whose kernels the engine chooses."""
    free_bytes: int = 0
    """0: the free memory of this machine."""
    manifest_json: str = ""
    n_sms: int = 0
    is_lent: bool = False
    """free_bytes is memory of a target's weights, lent to a scorer."""
    others: tuple[Device, ...] = ()
    """Further devices among which a target may be divided."""
    draft: Device | None = None
    """The device of a draft model; None: the target's."""
    vision: Device | None = None
    """The device of a vision tower; None: the target's first."""
    bandwidth_gb_s: float | None = None
    """GB/s of its memory, stated by the board's maker or reported by an NVIDIA driver; None if unknown."""


def plan_memory(
    model: str | os.PathLike[str],
    *,
    board: str | None = None,
    offline: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Plan:
    """The plan that `LLM` would make with these options (fields of `EngineOptions`), from the files' metadata.

    `board` plans for a card that is not here, by its name in `lucebox targets`, with or without the pack of its target;
    for several cards with commas between their names.
    `memory_limit` takes the place of the device's free memory. With `draft="auto"` the plan has the first
    drafter that fits; loading may drop it if it is not worth its cost.

    Raises:
        OutOfMemoryError: no context fits, or not the requested one; the message says how much memory would suffice.
        InvalidRequestError, PackError: no such board, or no such pack.
    """
    plan, path = plan_sizes(model, board=board, offline=offline, progress=progress, **options)
    TextAssets.load(path)  # raises if the engine has no tokenizer for the file
    return plan


def plan_sizes(
    model: str | os.PathLike[str],
    *,
    board: str | None = None,
    offline: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> tuple[Plan, Path]:
    """The plan of `plan_memory`, without its check of the tokenizer, and the model's file or folder."""
    check_names(EngineOptions, options)
    wanted = EngineOptions(**options)
    device = local_device(replace(wanted, memory_limit=None)) if board is None else _boards(board, wanted)
    if wanted.memory_limit is not None:
        limit = parse_size(wanted.memory_limit)
        others = tuple(replace(other, free_bytes=limit) for other in device.others)
        draft_device = None if device.draft is None else replace(device.draft, free_bytes=limit)
        device = replace(device, free_bytes=limit, others=others, draft=draft_device)
    found = resolve(os.fspath(model), offline=offline, progress=progress)
    tower = fetch_tower(wanted.mmproj, found, progress=progress)
    wanted = replace(wanted, mmproj=tower)
    drafts = resolve_drafts(wanted.draft, found, offline=offline, progress=progress)
    check_draft_device(wanted.draft_device, drafts)
    scorer = None
    if wanted.prefill_drafter is not None:
        path = resolve(wanted.prefill_drafter, offline=offline, progress=progress).path
        scorer = place_scorer(path, found.path, drafts, wanted, device)
        if not scorer.is_swapped:
            device = _beside(device, scorer.memory)
    memory, resolved, draft = _plan_target(found.path, drafts, wanted, device)
    bandwidths = tuple(one.bandwidth_gb_s for one in (device, *device.others))
    kernels = device.kernels or f"{resolved['threads']} threads, {resolved['isa']}"
    return Plan(memory, f"{memory.place}, {kernels}", draft.label, scorer, bandwidths), found.path


def _plan_target(
    path: Path, drafts: Sequence[Drafters], options: EngineOptions, device: Device
) -> tuple[MemoryPlan, dict[str, Any], Drafters]:
    """The plan with the first drafter that fits, the options as resolved, and that drafter."""
    for draft in drafts:
        try:
            plan, resolved = _engine.plan_memory(
                str(path),
                device.free_bytes,
                device.manifest_json,
                device.n_sms,
                device.name,
                [_numbers(other) for other in device.others],
                None if device.draft is None or draft.draft_model is None else _numbers(device.draft),
                None if device.vision is None else _numbers(device.vision),
                **engine_fields(replace(options, memory_limit=None)),
                **engine_fields(draft),
            )
            break
        except (FormatError, OutOfMemoryError, UnsupportedError):
            if draft == drafts[-1]:
                raise
    memory = MemoryPlan.from_engine(plan)
    return with_profile(memory, ExpertProfile.of_plan(path, memory)), resolved, draft


def _numbers(device: Device) -> tuple[int, str, int, str]:
    return device.free_bytes, device.manifest_json, device.n_sms, device.name


def with_profile(plan: MemoryPlan, profile: ExpertProfile | None) -> MemoryPlan:
    """The plan with the hits that earlier runs of the model promise."""
    if plan.experts is None or profile is None:
        return plan
    return replace(plan, experts=replace(plan.experts, profile_hits=profile.share_of_slots()))


def place_scorer(
    path: Path, target: Path, drafts: Sequence[Drafters], options: EngineOptions, device: Device
) -> ScorerPlan:
    """Decides the memory placement of the scorer at `path`: co-resident if both models fit with these options, else
    swapped with the target's weights. The CPU never swaps: weights are memory-mapped, and the OS evicts their pages.

    drafts: the target's candidates, one of which must fit. device: its free_bytes are shared by both models.

    Raises:
        OutOfMemoryError: the target fits neither with the scorer nor alone, or its weights are too small to host the
            scorer.
    """
    own = EngineOptions(**scorer_fields(options))
    memory = None
    try:
        memory = plan_scorer(path, own, device)
        _plan_target(target, drafts, options, _beside(device, memory))
        return ScorerPlan(memory, is_swapped=False)
    except OutOfMemoryError as error:
        if not device.manifest_json:
            if memory is None:
                raise
            raise _without_room(error, path.name, memory) from error
    alone = _plan_target(target, drafts, options, device)[0]
    try:
        return ScorerPlan(plan_scorer(path, own, lent_memory(device, alone)), is_swapped=True)
    except OutOfMemoryError as error:
        raise OutOfMemoryError(
            f"the scorer {path.name} does not fit beside the target, nor in the memory of the target's weights: {error}"
        ) from error


def lent_memory(device: Device, target: MemoryPlan) -> Device:
    """The device as a swapped scorer sees it: its memory is the target's weights."""
    return replace(device, free_bytes=target.bytes_of("weights"), is_lent=True)


def _beside(device: Device, scorer: MemoryPlan) -> Device:
    """The device with the memory that a co-resident scorer leaves free."""
    free_bytes = device.free_bytes or scorer.available_bytes  # 0 on the CPU, whose plans reserve nothing for a driver
    return replace(device, free_bytes=max(1, free_bytes - scorer.total_bytes))


def plan_scorer(path: Path, options: EngineOptions, device: Device) -> MemoryPlan:
    """The plan of a scorer of prompts. Without a context in the options, it has the model's maximum, up to
    MAX_SCORER_CONTEXT, or less if memory is short.

    Raises:
        OutOfMemoryError: no context fits, or not the requested one.
    """

    def plan(context: int | None) -> MemoryPlan:
        numbers = _engine.plan_scorer_memory(
            str(path),
            device.free_bytes,
            device.manifest_json,
            device.n_sms,
            device.name,
            device.is_lent,
            **engine_fields(replace(options, context=context, memory_limit=None), "scorer"),
        )
        return MemoryPlan.from_engine(numbers)

    largest = plan(options.context)
    return largest if options.context is not None or largest.context <= MAX_SCORER_CONTEXT else plan(MAX_SCORER_CONTEXT)


def _without_room(error: OutOfMemoryError, scorer: str, plan: MemoryPlan) -> OutOfMemoryError:
    """The error of a target that does not fit, extended by its scorer's memory."""
    return OutOfMemoryError(
        f"{error}. The scorer {scorer} beside it takes {show_size(plan.total_bytes)} for texts of {plan.context} "
        "tokens: name a smaller prefill_drafter, a smaller context, or no scorer"
    )


def scorer_fields(options: EngineOptions) -> dict[str, Any]:
    """The options that a scorer takes from its target. A scorer is on the first of several devices."""
    names = ("pack", "threads", "activations", "isa", "memory_limit", "prefill_sparse_alpha")
    return {"device": options.device.partition(",")[0], **{name: getattr(options, name) for name in names}}


def local_device(options: EngineOptions) -> Device:
    """The devices of this machine that the options name, with their free memory up to memory_limit."""
    limit = None if options.memory_limit is None else parse_size(options.memory_limit)
    selections = resolve_devices(options.device, options.pack, require_gpu=options.require_gpu)
    first, *others = (_facts(selection, limit) for selection in selections)
    draft = vision = None
    if options.draft_device is not None:
        draft = _facts(resolve_draft_device(options.draft_device, selections, options.pack), limit)
    if options.vision_device is not None:
        vision = _facts(resolve_vision_device(options.vision_device, selections, options.pack), None)
    return replace(first, others=tuple(others), draft=draft, vision=vision)


def _facts(selection: Selection, limit: int | None) -> Device:
    if selection.info is None or selection.choice is None:
        return Device(selection.device, "", limit or 0)
    device = _engine.gpu.Device(selection.info.vendor, selection.info.index)
    free_bytes = max(1, device.memory()[0] - _engine.promised_bytes(selection.device))
    pack, code = selection.choice.pack, selection.choice.code
    kernels = f"pack {pack.name} by {code.compiler}"
    return Device(
        selection.device,
        kernels,
        free_bytes if limit is None else min(limit, free_bytes),
        pack.manifest_json,
        device.info.n_sms,
        bandwidth_gb_s=_bandwidth_gb_s(device.info),
    )


def _bandwidth_gb_s(info: _engine.gpu.DeviceInfo) -> float | None:
    """Memory of NVIDIA's cards moves two words per clock."""
    gb_s = 2 * info.memory_clock_khz * 1e3 * info.bus_bits / 8 / 1e9
    return gb_s if info.vendor == "cuda" and gb_s > 0 else None


def _boards(names: str, options: EngineOptions) -> Device:
    first, *others = (_board(name, options) for name in names.split(","))
    return replace(first, others=tuple(others))


def _board(name: str, options: EngineOptions) -> Device:
    target, board = targets.find_board(name)
    vision = Device("cpu", "", 0) if options.vision_device == "cpu" else None
    elsewhere = [one for one in (options.draft_device, None if vision else options.vision_device) if one is not None]
    if options.device != "auto" or elsewhere:
        named = elsewhere[0] if elsewhere else options.device
        raise InvalidRequestError(f"a plan is for the board {board.name} or for the device {named}, not both")
    fitting = packs.fitting(target.architecture, packs.find())
    pack = next((one for one in fitting if options.pack in (None, one.name)), None)
    if pack is None and options.pack not in (None, target.name):
        raise PackError(
            f"the pack {options.pack} is not installed; without --pack the plan is for the pack {target.name}"
        )
    if isinstance(pack, packs.BrokenPack):
        raise PackError(pack.error)
    if board.memory_gb is None and options.memory_limit is None:
        raise InvalidRequestError(f"the maker of {board.name} states no memory; add --memory-limit, as 16GiB")
    if board.sm_count is None:
        raise InvalidRequestError(
            f"the maker of {board.name} states no number of multiprocessors; plan for another board"
        )
    if pack is None:
        kernels, manifest = f"pack {target.name}, which is not installed", manifest_json(target)
    else:
        kernels, manifest = f"pack {pack.name} by {pack.manifest.generations[0].compiler}", pack.manifest_json
    return Device(
        board.name,
        kernels,
        int((board.memory_gb or 0) * 2**30),
        manifest,
        board.sm_count,
        vision=vision,
        bandwidth_gb_s=board.bandwidth_gb_s,
    )
