"""Preloads a driver library that the dynamic loader does not find by itself. The engine then opens the library by name,
and the loader returns the loaded copy."""

from __future__ import annotations

import contextlib
import ctypes
from importlib.machinery import PathFinder
from pathlib import Path

from lucebox.packs import machine

__all__ = ["load", "newer_hip"]

NAMES = {"cuda": ("libcuda.so.1",), "hip": ("libamdhip64.so.7", "libamdhip64.so.6")}
NEWER_HIP = ("libamdhip64.so.8", "libamdhip64.so.9")
# NixOS; Windows' driver in WSL.
NVIDIA_FOLDERS = ("run/opengl-driver/lib", "usr/lib/wsl/lib")
ROCM_FOLDERS = ("opt/rocm/lib", "opt/rocm-*/lib")
# Python packages that ship a HIP runtime, and its folder in them: ROCm's wheels, PyTorch for ROCm.
WHEELS = (("_rocm_sdk_core", "lib"), ("torch", "lib"))


def load(backend: str, root: Path = machine.ROOT) -> str | None:
    """The loaded library of cuda or hip, by name or path; None if there is none. Folders are below `root`."""
    folders = _rocm_folders(root) if backend == "hip" else [root / folder for folder in NVIDIA_FOLDERS]
    paths = [str(folder / name) for folder in folders for name in NAMES[backend]]
    return _first((*NAMES[backend], *paths, *(_in_wheels() if backend == "hip" else ())))


def newer_hip(root: Path = machine.ROOT) -> str | None:
    """A HIP runtime that is newer than the ones that the engine reads."""
    return _first((*NEWER_HIP, *(str(folder / name) for folder in _rocm_folders(root) for name in NEWER_HIP)))


def _first(names: tuple[str, ...]) -> str | None:
    for name in names:
        with contextlib.suppress(OSError):
            ctypes.CDLL(name)
            return name
    return None


def _rocm_folders(root: Path) -> list[Path]:
    named = machine.rocm_path()
    found = sorted((folder for pattern in ROCM_FOLDERS for folder in root.glob(pattern)), reverse=True)
    return ([named / "lib"] if named else []) + found


def _in_wheels() -> tuple[str, ...]:
    found: list[str] = []
    for package, folder in WHEELS:
        spec = PathFinder.find_spec(package)  # imports nothing
        for place in (spec.submodule_search_locations or []) if spec else []:
            found += map(str, sorted((Path(place) / folder).glob("libamdhip64.so*"), reverse=True))
    return tuple(found)
