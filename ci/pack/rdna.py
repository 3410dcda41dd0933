"""Counts what an AMD kernel does, from the compiler's assembly, and checks the kernels that decide a model's speed.

No Radeon runs in this project's tests, so these counts are what keeps such a kernel fast: registers for the waves that
hide the latency of memory, wide loads, pairs of vector instructions that issue together, and waits. A count is of
instructions in the code, not of executions: a loop's body counts once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from pack.gate import max_threads
from pack.kernel import Kernel
from targets import Target

FUNCTION = re.compile(r"^(\w+):\s+; @")
KERNEL = re.compile(r"^\s+\.amdhsa_kernel (\w+)")
INSTRUCTION = re.compile(r"^\t([a-z]\w+)")
LOAD = re.compile(r"(?:global|flat|buffer)_load_(?:d16_)?(?:hi_)?([a-z]+\d+)")
MEMORY_WAIT = re.compile(r"s_waitcnt(?!_depctr)|s_wait_\w+cnt")
LOAD_BYTES = {"b128": 16, "b96": 12, "b64": 8, "b32": 4, "b16": 2, "u16": 2, "i16": 2, "u8": 1, "i8": 1}


@dataclass(slots=True)
class Counts:
    instructions: int = 0
    vector: int = 0  # vector operations; a pair is two
    paired: int = 0  # of them in pairs
    dots: int = 0  # products of 4 bytes or 2 halves, with their sum
    matrix: int = 0  # WMMA
    loads: int = 0
    load_bytes: int = 0  # of a lane
    wide_bytes: int = 0  # of them by loads of 16 bytes
    waits: int = 0  # for memory

    @property
    def paired_percent(self) -> float:
        return _percent(self.paired, self.vector)

    @property
    def wide_percent(self) -> float:
        return _percent(self.wide_bytes, self.load_bytes)

    def add(self, name: str) -> None:
        self.instructions += 1
        if name.startswith("v_dual_"):
            self.vector += 2
            self.paired += 2
        elif name.startswith("v_wmma"):
            self.matrix += 1
        elif name.startswith("v_"):
            self.vector += 1
            self.dots += name.startswith("v_dot")
        elif MEMORY_WAIT.match(name):
            self.waits += 1
        elif found := LOAD.fullmatch(name):
            size = LOAD_BYTES[found[1]]
            self.loads += 1
            self.load_bytes += size
            self.wide_bytes += size if size == 16 else 0


def counts(assembly: str) -> dict[str, Counts]:
    """The counts of each kernel, without the functions that it calls."""
    functions: dict[str, Counts] = {}
    kernels, current = set(), Counts()
    for line in assembly.splitlines():
        if found := INSTRUCTION.match(line):
            current.add(found[1])
        elif found := FUNCTION.match(line):
            current = functions[found[1]] = Counts()
        elif found := KERNEL.match(line):
            kernels.add(found[1])
    return {name: functions[name] for name in sorted(kernels)}


def dump(found: Mapping[str, Counts]) -> str:
    return json.dumps({name: asdict(one) for name, one in found.items()}, indent=1) + "\n"


def load(text: str) -> dict[str, Counts]:
    return {name: Counts(**row) for name, row in json.loads(text).items()}


@dataclass(frozen=True, slots=True)
class Limit:
    """Bounds on a kernel's counts: today's values, with about a sixth of room. Shares are in percent."""

    kernel: str
    wide: int  # min share of the loaded bytes that loads of 16 bytes bring
    paired: int  # min share of vector operations in pairs
    bytes_per_dot: float  # max loaded bytes per dot product
    waits: int  # max waits for memory


LIMITS = (
    Limit("gemv_q2_k_int8_kernel", wide=62, paired=18, bytes_per_dot=2.9, waits=30),
    Limit("gemv_q3_k_int8_kernel", wide=50, paired=16, bytes_per_dot=3.7, waits=30),
    Limit("gemv_q4_k_int8_kernel", wide=90, paired=36, bytes_per_dot=9.5, waits=20),
    Limit("gemv_q5_k_int8_kernel", wide=80, paired=24, bytes_per_dot=8.4, waits=22),
    Limit("gemv_q6_k_int8_kernel", wide=54, paired=18, bytes_per_dot=6.0, waits=38),
    Limit("gemv_iq4_xs_int8_kernel", wide=60, paired=18, bytes_per_dot=3.8, waits=22),
)
GEMV = re.compile(r"gemv_(?!.*_wide_)\w+_kernel")


def problems(kernels: Sequence[Kernel], found: Mapping[str, Counts], target: Target) -> Iterator[str]:
    """One line for each broken limit. Kernels without counts, which were compiled without assembly, are held to their
    registers alone."""
    launched = target.tuning.matvec_threads_per_sm
    for kernel in kernels:
        where = f"{kernel.file}: {kernel.name}"
        if GEMV.fullmatch(kernel.name) and max_threads(kernel.registers, target) < launched:
            yield (
                f"{where}: {kernel.registers} registers allow {max_threads(kernel.registers, target)} threads on a "
                f"workgroup processor, matvec_threads_per_sm launches {launched}"
            )
        for limit in (one for one in LIMITS if one.kernel == kernel.name and kernel.name in found):
            yield from (f"{where}: {text}" for text in _broken(limit, found[kernel.name]))


def _broken(limit: Limit, one: Counts) -> Iterator[str]:
    if one.wide_percent < limit.wide:
        yield f"{one.wide_percent:.0f} % of its bytes come by loads of 16, expected {limit.wide} % or more"
    if one.paired_percent < limit.paired:
        yield f"{one.paired_percent:.0f} % of its vector operations issue in pairs, expected {limit.paired} % or more"
    if one.waits > limit.waits:
        yield f"{one.waits} waits for memory, expected at most {limit.waits}"
    if one.load_bytes > limit.bytes_per_dot * one.dots:
        yield f"{one.load_bytes} bytes loaded for {one.dots} dot products, expected {limit.bytes_per_dot} a product"


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
