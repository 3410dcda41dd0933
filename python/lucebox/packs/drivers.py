"""The GPUs that the driver libraries of this machine report, asked through the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lucebox import _engine
from lucebox.errors import DeviceError
from lucebox.packs import driver_libraries

__all__ = ["VENDORS", "Gpu", "Survey", "driver_devices", "survey"]

# Back ends, with the vendor of each.
VENDORS = {"cuda": "nvidia", "hip": "amd"}


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device reported by its driver."""

    vendor: str
    """cuda or hip."""
    index: int
    name: str
    architecture: str
    driver: str
    driver_generation: str
    total_bytes: int
    free_bytes: int | None
    error: str | None = None
    """Why the device cannot be opened."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The answers of the driver libraries."""

    devices: tuple[Gpu, ...]
    errors: Mapping[str, str]
    """Back end (cuda, hip) -> why it did not answer."""
    versions: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Back end -> version and generation of the library that answers, with or without devices: "CUDA 13.0", "580"."""


def survey() -> Survey:
    """Asks every driver library."""
    found: list[Gpu] = []
    errors, versions = {}, {}
    for backend in VENDORS:
        try:
            found += map(_gpu, driver_devices(backend))
            versions[backend] = _engine.gpu.driver_version(backend)
        except DeviceError as error:
            errors[backend] = str(error)
    return Survey(tuple(found), errors, versions)


def driver_devices(backend: str) -> list[_engine.gpu.DeviceInfo]:
    """The devices that the driver library of a back end reports.

    Raises:
        DeviceError: the library does not answer.
    """
    if backend in VENDORS:  # the simulator is in the engine
        driver_libraries.load(backend)
    return list(_engine.gpu.devices(backend))


def _gpu(info: _engine.gpu.DeviceInfo) -> Gpu:
    free, error = None, None
    try:
        free, _ = _engine.gpu.Device(info.vendor, info.index).memory()
    except DeviceError as reason:
        error = str(reason)
    return Gpu(
        vendor=info.vendor,
        index=info.index,
        name=info.name,
        architecture=info.architecture,
        driver=info.driver,
        driver_generation=info.driver_generation,
        total_bytes=info.memory_bytes,
        free_bytes=free,
        error=error,
    )
