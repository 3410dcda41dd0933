"""Packs as pip would install them, made in a temporary folder: a package with manifest and files, and its dist-info."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import invalidate_caches
from pathlib import Path
from typing import Any

import lucebox
from lucebox import packs
from lucebox.packs import targets
from lucebox.packs.manifest import split

CODE = {"rms_norm.cubin": b"\x7fELF the norm", "matvec.cubin": b"\x7fELF the product of a matrix and a vector"}


OWN_OF_CODE = ("min_driver", "compiler", "files", "kernels")
# An NVIDIA pack's code for drivers older than nvcc's code needs.
OLDER = {"min_driver": "525", "compiler": {"name": "nvrtc", "version": "12.4.127", "flags": ["-default-device"]}}


def manifest(target: str = "sm_86", **changes: Any) -> dict[str, Any]:
    """A valid manifest with one generation of code. `changes` replace keys of either; `...` removes a key. A target
    unknown to lucebox gets the driver of its vendor's other targets."""
    target, variant = split(target)
    known = targets.find(target)
    vendor = targets.vendor_of(known.architecture if known else target)
    assert vendor is not None
    driver = {"nvidia": "580", "amd": "6.0", "sim": ""}[vendor]
    value: dict[str, Any] = {
        "schema": 3,
        "target": target,
        "variant": variant,
        "vendor": vendor,
        "architecture": known.architecture if known else target,
        "version": lucebox.__version__,
        "abi": "0123456789abcdef",
        "commit": "",
        "boards": [{"name": f"Board of {target}", "sm_count": 8, "memory_gb": 24, "bandwidth_gb_s": None}],
        "capabilities": {"bf16": True, "matrix": "mma_bf16", "shared_block_bytes": 101376},
        "tuning": {"matvec_threads_per_sm": 512},
        "exceptions": [],
        "archive": None,
    }
    code: dict[str, Any] = {
        "min_driver": driver,
        "compiler": {"name": "nvcc", "version": "13.0.88", "flags": ["-O3"]},
        "files": [
            {"file": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in CODE.items()
        ],
        "kernels": [
            {
                "name": f"{Path(name).stem}_kernel",
                "file": name,
                "max_threads": 256,
                "registers": 24,
                "shared_bytes": 128,
                "max_dynamic_shared_bytes": 0,
                "spill_bytes": 0,
                "stack_bytes": 0,
            }
            for name in CODE
        ],
    }
    code |= {key: item for key, item in changes.items() if key in code}
    code = {key: item for key, item in code.items() if item is not ...}
    value |= {"generations": [code]} | {key: item for key, item in changes.items() if key not in OWN_OF_CODE}
    return {key: item for key, item in value.items() if item is not ...}


def with_older_code(target: str = "sm_86", **changes: Any) -> dict[str, Any]:
    """The manifest with a second generation, for older drivers, changed by `changes`. Both have the same files here."""
    value = manifest(target)
    value["generations"].append(value["generations"][0] | OLDER | changes)
    return value


def install(
    site: Path,
    target: str = "sm_86",
    *,
    content: dict[str, Any] | str | None = None,
    distribution: str | None = None,
    entry: str | None = None,
    package: bool = True,
) -> Path:
    """Puts a pack into `site` and returns its package folder. `content` is its manifest (text is written as it is),
    `entry` the value of its entry point; without `package` only the dist-info is there."""
    name = packs.package(target)
    distribution = distribution or name.replace("_", "-")
    info = site / f"{distribution.replace('-', '_')}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[lucebox.packs]\n{target} = {entry or name}\n")
    folder = site / name
    if package:
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").touch()
        text = content if isinstance(content, str) else json.dumps(manifest(target) if content is None else content)
        (folder / "manifest.json").write_text(text)
        for file, data in CODE.items():
            (folder / file).write_bytes(data)
    return folder


@contextmanager
def on_path(site: Path) -> Iterator[None]:
    """The packs of `site` can be found, and none that this environment has."""
    forget()
    before = list(sys.path)
    sys.path[:] = [str(site), *(folder for folder in before if not has_packs(Path(folder)))]
    invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before
        forget()


def has_packs(folder: Path) -> bool:
    return any("[lucebox.packs]" in file.read_text() for file in folder.glob("lucebox_*.dist-info/entry_points.txt"))


def forget() -> None:
    for name in [name for name in sys.modules if name.startswith("lucebox_")]:
        del sys.modules[name]
