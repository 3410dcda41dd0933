"""Preloads the HIP runtime: ROCm's own, else one installed by pip. The engine then opens the library by name, and the
dynamic loader returns the loaded copy."""

from __future__ import annotations

import contextlib
import ctypes
from importlib.machinery import PathFinder
from pathlib import Path

__all__ = ["load"]

NAMES = ("libamdhip64.so.7", "libamdhip64.so.6")
# Python packages that ship a HIP runtime, and its folder in them: ROCm's wheels, PyTorch for ROCm.
WHEELS = (("_rocm_sdk_core", "lib"), ("torch", "lib"))


def load() -> str | None:
    """The loaded library, by name or path; None if there is none."""
    for name in (*NAMES, *_in_wheels()):
        with contextlib.suppress(OSError):
            ctypes.CDLL(name)
            return name
    return None


def _in_wheels() -> list[str]:
    found: list[str] = []
    for package, folder in WHEELS:
        spec = PathFinder.find_spec(package)  # imports nothing
        for place in (spec.submodule_search_locations or []) if spec else []:
            found += map(str, sorted((Path(place) / folder).glob("libamdhip64.so*"), reverse=True))
    return found
