"""`run`: every kernel of a pack on a device of this machine, compared with the same op on the CPU.

The device reports the kernels it launched for a case, so a kernel that no case reaches fails. Numbers only, no speed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from lucebox import _engine
from lucebox.errors import DeviceError, InternalError, InvalidRequestError, PackError, UnsupportedError
from lucebox.packs import Manifest, Selection, parse_device
from lucebox.packs.devices import open_pack, resolve_device
from lucebox.selftest import ops
from lucebox.selftest.case import LIMITS, Case
from lucebox.selftest.cases import OF_MODELS, cases
from lucebox.selftest.products import FP8_GEMMS

__all__ = ["DeviceOps", "KernelResult", "PackDevice", "Report", "compare", "open_device", "run"]

Progress = Callable[[int, int, str], None]


class DeviceOps(Protocol):
    """Runs cases on a device with a loaded pack."""

    name: str
    """cuda:0"""
    manifest: Manifest

    def call(self, case: Case) -> tuple[NDArray[Any], Sequence[str]]:
        """The device's result of a case, and the kernels launched for it."""
        ...


class PackDevice:
    """A pack loaded on a device of this machine."""

    def __init__(self, selection: Selection, manifest: Manifest) -> None:
        self.name = selection.device
        self.manifest = manifest
        self._selection = selection
        self._packs: dict[tuple[str, ...], _engine.gpu.Pack] = {}
        self._pack(())  # a pack that does not load fails here

    def call(self, case: Case) -> tuple[NDArray[Any], Sequence[str]]:
        pack = self._pack(case.without)
        result = ops.function(case.op, pack)(*case.arguments, **case.options)
        return case.collect(result), ops.take_started(pack)

    def _pack(self, without: tuple[str, ...]) -> _engine.gpu.Pack:
        if without not in self._packs:
            pack = open_pack(self._selection, without)
            assert pack is not None  # open_device() found one
            self._packs[without] = pack
        return self._packs[without]


def open_device(device: str, note: Callable[[str], None], pack: str | None = None) -> PackDevice:
    """The device named `device`, with the pack named `pack` or its preferred one. `note` receives the reason for this
    device and this pack.

    Raises:
        InvalidRequestError: it is the CPU.
        DeviceError, PackError: no such device, or no pack for it.
    """
    if parse_device(device).backend == "cpu":
        raise InvalidRequestError("a self-test compares a GPU pack with the CPU: device must be cuda:N, hip:N or sim")
    selection = resolve_device(device, pack)
    if selection.info is None or selection.choice is None:
        raise PackError(f"nothing to test: {'; '.join(selection.report)}. `lucebox doctor` says more")
    for line in selection.report:
        note(line)
    return PackDevice(selection, selection.choice.pack.manifest)


@dataclass(slots=True)
class KernelResult:
    """The results of one kernel's cases."""

    kernel: str
    n_cases: int = 0
    worst: float = 0.0
    """The largest error of a value, in units of its case."""
    limit: float = 0.0
    """The limit of the worst case."""
    seconds: float = 0.0
    """Time of all cases, including copies to and from the device."""
    problem: str | None = None
    """The first failed case, and its error."""

    @property
    def verdict(self) -> Literal["ok", "failed", "no test"]:
        if self.problem:
            return "failed"
        return "ok" if self.n_cases else "no test"


@dataclass(frozen=True, slots=True)
class Report:
    device: str
    pack: str
    seed: int
    kernels: tuple[KernelResult, ...]
    errors: tuple[str, ...]
    """Cases that the device failed to run."""

    @property
    def ok(self) -> bool:
        return not self.errors and all(kernel.verdict == "ok" for kernel in self.kernels)


def run(device: DeviceOps, seed: int, on_case: Progress | None = None) -> Report:
    """Runs every case. `on_case` receives (cases done, all cases, the next case) before each."""
    results = {name: KernelResult(name) for name in device.manifest.kernel_names if not OF_MODELS.fullmatch(name)}
    errors = []
    wide = "BF16" if device.manifest.capabilities["bf16"] else "F16"
    fp8 = [one for one in FP8_GEMMS if f"{one}_kernel" in device.manifest.kernel_names]
    todo = list(cases(np.random.default_rng(seed), wide, fp8))
    for done, case in enumerate(todo):
        if on_case:
            on_case(done, len(todo), case.label)
        try:
            _run_case(device, case, results)
        except UnsupportedError:
            continue  # the pack has no kernel for this case; a kernel without any case is reported as "no test"
        except (DeviceError, InternalError) as error:
            errors.append(f"{case.label}: {error}")
    return Report(device.name, device.manifest.name, seed, tuple(results.values()), tuple(errors))


def _run_case(device: DeviceOps, case: Case, results: dict[str, KernelResult]) -> None:
    start = time.perf_counter()
    got, kernels = device.call(case)
    seconds = time.perf_counter() - start
    expected = case.reference()
    limit = LIMITS[case.limit].error
    error, problem = compare(got, case.collect(expected), case.unit_of(expected), limit)
    for name in set(kernels) & results.keys():
        result = results[name]
        result.n_cases += 1
        result.seconds += seconds
        if result.n_cases == 1 or error > result.worst:
            result.worst, result.limit = error, limit
        if problem and result.problem is None:
            result.problem = f"{case.label}: {problem}"


def compare(got: NDArray[Any], expected: NDArray[Any], unit: NDArray[Any], limit: float) -> tuple[float, str | None]:
    """The largest error in units of `unit`, and a description if it exceeds the limit."""
    if got.shape != expected.shape:
        return np.inf, f"shape {list(got.shape)}, expected {list(expected.shape)}"
    with np.errstate(invalid="ignore"):  # converting signalling NaNs
        a, b = got.astype(np.float64), expected.astype(np.float64)
    if (np.isnan(a) != np.isnan(b)).any():
        return np.inf, f"{np.count_nonzero(np.isnan(a))} NaN, expected {np.count_nonzero(np.isnan(b))}"
    with np.errstate(invalid="ignore"):
        error = np.where((a == b) | np.isnan(b), 0.0, np.abs(a - b) / np.maximum(unit, np.finfo(np.float32).tiny))
    worst = np.unravel_index(int(error.argmax()), error.shape)
    if error[worst] <= limit:
        return float(error[worst]), None
    at = ", ".join(map(str, worst))
    return float(error[worst]), f"element [{at}] is {a[worst]:.7g}, expected {b[worst]:.7g}"
