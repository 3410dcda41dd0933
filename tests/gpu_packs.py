"""Packs for tests: loads any pack on a device of its vendor."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from lucebox import _engine
from lucebox.packs import open_folder

BACKENDS = {"nvidia": "cuda", "amd": "hip", "sim": "sim"}

# Weights reach a megakernel's products by bulk copies through a ring or by plain loads. For each way, the kernels to
# leave out: chips without bulk copies lack more than the other megakernels.
MEGAKERNELS = {
    "stream": r"megakernel_\w+_direct_kernel",
    "direct": r"megakernel_(plain|32|256)_kernel|\w+_sm90_.*|gemv_\w+_(whole|ring)_.*|gated_delta_chain_.*",
}
MIN_SHARED_BYTES = 65536  # of a block: sm_75 and AMD
F16_ONLY = ("sm_70", "sm_75")  # targets whose matrix units do not take bf16


def manifest_of(folder: Path) -> dict[str, Any]:
    """The manifest of the pack in this folder."""
    value: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return value


def has_kernel(manifest: dict[str, Any], start: str) -> bool:
    """Whether a pack has a kernel whose name starts with `start`."""
    return any(kernel["name"].startswith(start) for kernel in manifest["generations"][0]["kernels"])


def manifest_without(folder: Path, kernels: str) -> dict[str, Any]:
    """The pack's manifest without the kernels whose names match the regular expression `kernels`."""
    manifest = manifest_of(folder)
    for code in manifest["generations"]:
        code["kernels"] = [kernel for kernel in code["kernels"] if not re.fullmatch(kernels, kernel["name"])]
    return manifest


def load(folder: Path, manifest: dict[str, Any], *, index: int = 0, **files: bytes | None) -> _engine.gpu.Pack:
    """Loads the pack in a folder with this manifest on a device of its vendor. `files` replace files of the pack; None
    removes one."""
    images = open_folder(folder).images()
    images = {name: image for name, image in {**images, **files}.items() if image is not None}
    return _engine.gpu.Pack(_engine.gpu.Device(BACKENDS[manifest["vendor"]], index), json.dumps(manifest), images)


def with_megakernels(folder: Path, way: str, index: int = 0) -> _engine.gpu.Pack:
    """The pack in a folder with only the kernels of one of MEGAKERNELS. Skips the test where it has none."""
    manifest = manifest_without(folder, MEGAKERNELS[way])
    if way == "direct":
        manifest["capabilities"]["shared_block_bytes"] = MIN_SHARED_BYTES
    if not has_kernel(manifest, "megakernel_"):
        pytest.skip(f"the pack of {folder.name} has no megakernel whose weights come that way")
    return load(folder, manifest, index=index)


def with_megakernels_on_devices(folder: Path, way: str, max_devices: int) -> list[_engine.gpu.Pack]:
    """with_megakernels() on the devices of load_on_devices()."""
    n = len(load_on_devices(folder, max_devices))
    return [with_megakernels(folder, way, index=i) for i in range(n)]


def load_on_devices(folder: Path, max_devices: int) -> list[_engine.gpu.Pack]:
    """The pack in a folder on the devices 0, 1, ... of its vendor. Skips the test where there is only one."""
    manifest = manifest_of(folder)
    n = min(max_devices, len(_engine.gpu.devices(BACKENDS[manifest["vendor"]])))
    if n < 2:
        pytest.skip("one device is here, and the test needs two")
    return [load(folder, manifest, index=i) for i in range(n)]
