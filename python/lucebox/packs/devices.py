"""Resolves a device name ("cuda:0") to a device of this machine and its pack, and loads the pack."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from lucebox import _engine
from lucebox.errors import InvalidRequestError, PackError
from lucebox.packs import Packs, Selection, causes, find, machine, min_driver, parse_device, parse_devices, select
from lucebox.packs.drivers import VENDORS, Survey, driver_devices, survey

__all__ = ["open_pack", "resolve_device", "resolve_devices", "resolve_draft_device", "resolve_vision_device"]


def resolve_device(device: str, pack: str | None = None, *, require_gpu: bool = False) -> Selection:
    """The device and pack that `device` ("auto", "cpu", "cuda:0", "hip:1", "sim") names on this machine; `pack`
    overrides the preferred pack. With `require_gpu`, "auto" never is the CPU.

    Raises:
        InvalidRequestError: not a device name, or not a GPU although `require_gpu`.
        DeviceError, PackError: no such device, no pack for it, or no usable GPU although `require_gpu`.
    """
    spec = parse_device(device)
    if require_gpu and spec.backend in ("cpu", "sim"):
        raise InvalidRequestError(f'require_gpu needs a GPU, device is "{device}"')
    if spec.backend == "cpu":
        return select(spec, (), find(), pack)
    if spec.backend != "auto":
        return select(spec, driver_devices(spec.backend), find(), pack)
    answers = survey()
    installed = find()
    selection = select(spec, answers.devices, installed, pack)
    if selection.device != "cpu":
        return selection
    selection = replace(selection, unused=(*selection.unused, *_without_driver(answers, installed)))
    if require_gpu:
        why = "; ".join(selection.unused) or "this machine has none that lucebox knows"
        raise PackError(f"no GPU is usable, and require_gpu refuses the CPU: {why}. `lucebox doctor` says more")
    return selection


def resolve_devices(device: str, pack: str | None = None, *, require_gpu: bool = False) -> tuple[Selection, ...]:
    """As `resolve_device`, of one device or of several GPUs: "cuda:0,cuda:1".

    Raises:
        InvalidRequestError: a device twice, or devices that no model can share.
    """
    specs = parse_devices(device)
    if len(specs) == 1:
        return (resolve_device(device, pack, require_gpu=require_gpu),)
    if require_gpu and any(spec.backend == "sim" for spec in specs):
        raise InvalidRequestError(f'require_gpu needs GPUs, device is "{device}"')
    installed = find()
    present = {backend: driver_devices(backend) for backend in dict.fromkeys(spec.backend for spec in specs)}
    return tuple(select(spec, present[spec.backend], installed, pack) for spec in specs)


def resolve_draft_device(device: str, of_model: Sequence[Selection], pack: str | None = None) -> Selection:
    """The GPU that the option `draft_device` names, for a model on these devices.

    Raises:
        InvalidRequestError: not a GPU by its name, or one that the model is on, or the model is not on one GPU.
        DeviceError, PackError: no such device, or no pack for it.
    """
    spec, names = parse_device(device), ",".join(one.device for one in of_model)
    if spec.backend in ("auto", "cpu"):
        raise InvalidRequestError(f'draft_device names a GPU, as cuda:1; got "{device}"')
    if len(of_model) > 1 or names == "cpu":
        raise InvalidRequestError(
            f"draft_device = {device}: the whole model must be on one other GPU, and it is on {names}. Name one GPU "
            "for each, or no draft_device: a model on several GPUs has its draft model there too"
        )
    if f"{spec.backend}:{spec.index}" == names:
        raise InvalidRequestError(f"draft_device = {device}: the model is there. Name another GPU, or no draft_device")
    return select(spec, driver_devices(spec.backend), find(), pack)


def resolve_vision_device(device: str, of_model: Sequence[Selection], pack: str | None = None) -> Selection:
    """The CPU or the GPU that the option `vision_device` names, for a model on these devices.

    Raises:
        InvalidRequestError: no device by its name, or one that the model is on.
        DeviceError, PackError: no such device, or no pack for it.
    """
    spec = parse_device(device)
    if spec.backend == "auto":
        raise InvalidRequestError(f'vision_device names a device, as cpu or cuda:1; got "{device}"')
    is_cpu = spec.backend == "cpu"
    if ("cpu" if is_cpu else f"{spec.backend}:{spec.index}") in [one.device for one in of_model]:
        raise InvalidRequestError(
            f"vision_device = {device}: the model is there. Name another device, or no vision_device"
        )
    return select(spec, () if is_cpu else driver_devices(spec.backend), find(), None if is_cpu else pack)


def _without_driver(answers: Survey, installed: Packs) -> list[str]:
    """A line per GPU that a pack could serve, that the kernel lists and no driver library reports."""
    answering = {VENDORS[device.vendor] for device in answers.devices}
    lines = []
    for gpu in machine.find_gpus(machine.ROOT):
        minimum = min_driver(gpu.architecture, installed)
        if gpu.vendor not in answering and minimum is not None:
            cause = causes.find(gpu, answers, minimum, machine.ROOT)
            why = cause.what.partition(". ")[0]
            lines.append(f"{gpu.name or gpu.pci_id} ({gpu.architecture}) is not used: {why}. {cause.step}")
    return lines


def open_pack(selection: Selection, without: Sequence[str] = ()) -> _engine.gpu.Pack | None:
    """Verifies the selection's pack and loads it on the device; None for the CPU. `without` removes kernels whose names
    contain one of these words, so their fallbacks run."""
    if selection.info is None or selection.choice is None:
        return None
    device = _engine.gpu.Device(selection.info.vendor, selection.info.index)
    pack = selection.choice.pack
    manifest = json.loads(pack.manifest_json)
    for code in manifest["generations"]:
        code["kernels"] = [one for one in code["kernels"] if not any(word in one["name"] for word in without)]
    text = json.dumps(manifest) if without else pack.manifest_json
    return _engine.gpu.Pack(device, text, pack.load(selection.choice.code))
