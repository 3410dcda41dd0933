"""Manifests of complete packs: with every kernel that the sources define for a target."""

from __future__ import annotations

import functools
import json
from dataclasses import asdict
from typing import Any

from kernel_sources import kernels_of_sources

import targets

load = functools.cache(targets.load)  # tests choose thousands of launches


def manifest(name: str, kernels: list[dict[str, Any]], **changes: object) -> str:
    """The manifest of a pack with these kernels."""
    target = load(name)
    keys = ("bf16", "matrix", "async_copy", "fp8", "fp4", "tma", "clusters", "shared_block_bytes")
    capabilities = {key: getattr(target.capabilities, key) for key in keys}
    value = {
        "target": name,
        "vendor": target.vendor,
        "capabilities": capabilities,
        "tuning": asdict(target.tuning),
        "generations": [{"compiler": {"flags": []}, "kernels": kernels}],
    }
    return json.dumps({**value, **changes})


@functools.cache
def whole(name: str) -> str:
    """The manifest of a pack with every kernel that the sources define for a target."""
    return manifest(name, kernels_of(name))


def kernels_of(name: str) -> list[dict[str, Any]]:
    """Every kernel that the sources define for a target."""
    sources = kernels_of_sources()
    return [
        {"name": kernel, "max_threads": threads}
        for source in load(name).sources()
        for kernel, threads in sources[source].items()
    ]


def has_source(name: str, stem: str) -> bool:
    """Whether a kernel file goes into the target's pack."""
    return any(source.endswith(f"/{stem}.cpp") for source in load(name).sources())
