"""What a memory plan reads of a pack, for a pack that is not installed. planned.json is generated from the sources."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from lucebox.packs.targets import Target

__all__ = ["manifest_json"]


def manifest_json(target: Target) -> str:
    """The parts of the manifest that the pack of a target would have, and that a plan reads."""
    planned = json.loads(Path(__file__).with_name("planned.json").read_text(encoding="utf-8"))
    own = planned["targets"][target.name]
    kernels = [
        {"name": name, "max_threads": threads}
        for file in own["kernel_files"]
        for name, threads in planned["kernel_files"][file].items()
    ]
    return json.dumps(
        {
            "target": target.name,
            "vendor": target.vendor,
            "capabilities": asdict(target.capabilities),
            "tuning": own["tuning"],
            "generations": [{"min_driver": "", "compiler": {"flags": []}, "kernels": kernels}],
        }
    )
