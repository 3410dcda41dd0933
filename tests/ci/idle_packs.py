"""Starts the cases of `lucebox selftest` with kernels that do nothing, in a process with the stand-in for NVIDIA's
driver (tests/standin): prints the kernels of each target's pack that no case starts. Targets with the same kernels: the
first.

idle_packs.py LIBRARY KERNEL...    every pack has these kernels, too
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import sys
from pathlib import Path

import numpy as np
from compile_kernels import kernel_abi
from lucebox import _engine, selftest
from lucebox.errors import LuceboxError
from lucebox.selftest import Case, ops
from lucebox.selftest.cases import OF_MODELS
from lucebox.selftest.products import FP8_GEMMS
from whole_packs import kernels_of, load, manifest

import targets


class IdlePacks:
    """Packs of a target, and the kernels they started."""

    def __init__(self, library: bytes, target: str, more: list[str]) -> None:
        self._library, self._target = library, target
        self.kernels = [*kernels_of(target), *({"name": name, "max_threads": 32} for name in more)]
        self.started: set[str] = set()
        self._without = functools.cache(self._load)

    def run(self, case: Case) -> None:
        pack = self._without(case.without)
        # A target may lack a kernel, and the driver refuses grids that the simulator has too few processors for. A loop
        # of decode steps misses the tokens that no kernel writes.
        with contextlib.suppress(LuceboxError):
            ops.function(case.op, pack)(*case.arguments, **case.options)
        self.started.update(ops.take_started(pack))

    def untested(self) -> list[str]:
        names = {kernel["name"] for kernel in self.kernels} - self.started
        return sorted(name for name in names if not OF_MODELS.fullmatch(name))

    def _load(self, without: tuple[str, ...]) -> _engine.gpu.Pack:
        kept = [kernel for kernel in self.kernels if not any(word in kernel["name"] for word in without)]
        kernels = [{**kernel, "file": "idle"} for kernel in kept]
        code = {"compiler": {"flags": []}, "min_driver": "525", "kernels": kernels}
        text = manifest(self._target, [], abi=kernel_abi(), generations=[code])
        return _engine.gpu.Pack(_engine.gpu.Device("cuda"), text, {"idle": self._library})


def main() -> None:
    library, more = Path(sys.argv[1]).read_bytes(), sys.argv[2:]
    ctypes.CDLL("libcuda.so.1").standin_set(1, 13000, b"9.0")
    of_each_list = {tuple(load(name).sources()): name for name in reversed(targets.names())}.values()
    packs = {name: IdlePacks(library, name, more) for name in of_each_list}
    for case in selftest.cases(np.random.default_rng(1), "BF16", FP8_GEMMS):
        for pack in packs.values():
            pack.run(case)
    print(json.dumps({name: pack.untested() for name, pack in packs.items()}))


if __name__ == "__main__":
    main()
