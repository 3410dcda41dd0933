"""Builds tests/sim_kernels into a sim pack and runs its kernels through the C interface of device/sim_abi.h."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from once import compile_library, once

ROOT = Path(__file__).parent.parent
FLAGS = ("-ffp-contract=off", "-Wall", "-Wextra", "-Werror")
SANITIZE = ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")


class KernelEntry(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("max_threads", ctypes.c_int),
        ("min_blocks", ctypes.c_int),
        ("params_bytes", ctypes.c_size_t),
        ("static_shared_bytes", ctypes.c_size_t),
    ]


class Launch(ctypes.Structure):
    _fields_ = [
        ("kernel", ctypes.c_char_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("dynamic_shared_bytes", ctypes.c_size_t),
        ("cooperative", ctypes.c_int),
        ("params", ctypes.c_void_p),
        ("params_bytes", ctypes.c_size_t),
        ("order_seed", ctypes.c_uint64),
        ("stack_bytes", ctypes.c_size_t),
        ("cluster", ctypes.c_uint32),
    ]


class Io(ctypes.Structure):
    _fields_ = [
        ("input", ctypes.c_void_p),
        ("output", ctypes.c_void_p),
        ("counter", ctypes.c_void_p),
        ("n", ctypes.c_int),
    ]


@dataclass(frozen=True)
class Shape:
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (32, 1, 1)
    shared_bytes: int = 0
    cooperative: bool = False
    params_bytes: int = ctypes.sizeof(Io)
    seed: int = 0
    stack_bytes: int = 0
    cluster: int = 0


class SimPack:
    def __init__(self, library: Path) -> None:
        self.library = library
        self._functions = ctypes.CDLL(str(library))
        self._functions.lb_sim_kernels.restype = ctypes.POINTER(KernelEntry)

    def kernels(self) -> Iterator[KernelEntry]:
        count = ctypes.c_int()
        table = self._functions.lb_sim_kernels(ctypes.byref(count))
        return (table[i] for i in range(count.value))

    def run(
        self,
        kernel: str,
        shape: Shape,
        given: np.ndarray[Any, Any] | None = None,
        out: np.ndarray[Any, Any] | None = None,
        counter: np.ndarray[Any, Any] | None = None,
        n: int = 0,
    ) -> str:
        """Run a kernel; return its error, empty on success."""
        io = Io(*(None if a is None else a.ctypes.data for a in (given, out, counter)), n)
        launch = Launch(
            kernel.encode(),
            (ctypes.c_uint32 * 3)(*shape.grid),
            (ctypes.c_uint32 * 3)(*shape.block),
            shape.shared_bytes,
            shape.cooperative,
            ctypes.addressof(io),
            shape.params_bytes,
            shape.seed,
            shape.stack_bytes,
            shape.cluster,
        )
        error = ctypes.create_string_buffer(1024)
        failed = self._functions.lb_sim_run(ctypes.byref(launch), error, ctypes.c_size_t(len(error)))
        assert bool(failed) == bool(error.value)
        return error.value.decode()


def address_sanitizer_runs() -> bool:
    return hasattr(ctypes.CDLL(None), "__asan_init")


def build(sanitize: bool, folder: str = "tests/sim_kernels", *, files: str = "*.cpp", quads: bool = False) -> Path:
    """Build a library of kernels of a folder and the simulator. quads: with the layouts of sm_70."""
    sources = sorted([*(ROOT / folder).glob(files), *(ROOT / "src/sim").glob("*.cpp")])
    includes = [f"-I{ROOT / folder}" for folder in (folder, "src/sim", "src/cpp", "src")]
    flags = [*FLAGS, *(SANITIZE if sanitize else ("-O1",)), *(("-DLUCEBOX_QUADS",) if quads else ())]
    name = f"{Path(folder).name}{'-quads' if quads else ''}{'-sanitized' if sanitize else ''}"

    def compile_together(out: Path) -> None:
        """As one translation unit, because each file alone spends 1.5 s on headers. A file that defines the number of
        helper threads would define it for the kernels of the others."""
        alone = [source for source in sources if "define LB_HELPER_THREADS" in source.read_text()]
        unit = out.with_name(f"{name}.cpp")
        unit.write_text("".join(f'#include "{source}"\n' for source in sources if source not in alone))
        compile_library(out, [unit, *alone], *flags, *includes)

    return once(f"{name}.so", compile_together)


@functools.cache
def pack() -> SimPack:
    """The pack of tests/sim_kernels, sanitized when the test process has the sanitizer (ci/sanitize.py)."""
    return SimPack(build(address_sanitizer_runs()))


@functools.cache
def quads_pack() -> SimPack:
    """The products of tests/sim_kernels with the layouts of sm_70."""
    return SimPack(build(address_sanitizer_runs(), files="products.cpp", quads=True))
