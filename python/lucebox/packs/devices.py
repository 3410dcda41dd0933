"""Resolves a device name ("cuda:0") to a device of this machine and its pack, and loads the pack."""

from __future__ import annotations

import json
from collections.abc import Sequence

from lucebox import _engine
from lucebox.packs import Selection, find, parse_device, select
from lucebox.packs.drivers import driver_devices, survey

__all__ = ["open_pack", "resolve_device"]


def resolve_device(device: str, pack: str | None = None) -> Selection:
    """The device and pack that `device` ("auto", "cpu", "cuda:0", "hip:1", "sim") names on this machine; `pack`
    overrides the preferred pack.

    Raises:
        InvalidRequestError: not a device name.
        DeviceError, PackError: no such device, or no pack for it.
    """
    spec = parse_device(device)
    if spec.backend == "cpu":
        return select(spec, (), find(), pack)
    devices = survey().devices if spec.backend == "auto" else driver_devices(spec.backend)
    return select(spec, devices, find(), pack)


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
