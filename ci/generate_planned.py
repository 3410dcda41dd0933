"""Generates python/lucebox/packs/planned.json: what a memory plan reads of a pack, for packs that are not installed.
The preprocessor finds the kernels in the sources."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from generate_targets import as_json
from kernel_sources import kernels_of_sources

import targets

__all__ = ["files"]


def files() -> dict[str, str]:
    """The generated file: path from the root, and content."""
    kernels = {Path(file).stem: found for file, found in kernels_of_sources().items()}
    known = {
        target.name: {
            "tuning": asdict(target.tuning),
            "kernel_files": [Path(file).stem for file in target.sources()],
        }
        for target in targets.load_all()
        if not target.variant
    }
    return {"python/lucebox/packs/planned.json": as_json({"kernel_files": kernels, "targets": known}) + "\n"}
