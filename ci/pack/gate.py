"""Checks the rules for every pack: no kernel spills or needs a stack, a full block of each kernel fits the chip, and
the loops of GEMMs have the matrix instruction of their operands."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from pack import sass
from pack.kernel import Kernel
from targets import Target, Waiver

REGISTER_FILE = 65536  # 32-bit registers of an NVIDIA SM; a thread's share is rounded up to 8
NVIDIA_GRANULE = 8
# AMD: registers per lane of a SIMD, and their allocation granularity; a workgroup processor has four SIMDs. From LLVM's
# AMDGPU target: Feature1_5xVGPRs and getVGPRAllocGranule, for waves of 32.
SIMDS = 4
LARGE_FILE, SMALL_FILE = (1536, 24), (1024, 16)
HAS_LARGE_FILE = re.compile(r"gfx110[01]|gfx1151|gfx12\d\d")
WAVE = 32
# NVIDIA: pattern of kernel names -> the matrix instruction of their loops. ptxas assembles products of fp8 to
# conversions and HMMA for chips that have no QMMA for them.
MATRIX = {
    r"gemm_sm(89|120)_f8_e4m3_kernel": "QMMA",
    r"gemm_sm120_nvfp4_kernel": "OMMA",
    r"gemm_\w+_int(8|16)_\d+_kernel": "IMMA",
}
OF_SM70 = {"IMMA": "IDP"}  # dp4a: it has no matrix instruction for bytes


def problems(code: Mapping[str, Sequence[Kernel]], target: Target) -> list[str]:
    """One line per broken rule and per waiver that is no longer needed. `code` has the kernels by compiler."""
    found = []
    for compiler, kernels in code.items():
        may_spill = excused(target, compiler)
        found += [line for kernel in kernels for line in _problems(kernel, target, kernel.name in may_spill)]
    return found + [line for waiver in target.exceptions if (line := _stale(waiver, code, target))]


def excused(target: Target, compiler: str) -> set[str]:
    """The kernels that may spill if this compiler makes them."""
    return {waiver.kernel for waiver in target.exceptions if waiver.excuses("spill", compiler)}


def _stale(waiver: Waiver, code: Mapping[str, Sequence[Kernel]], target: Target) -> str:
    of = [kernels for compiler, kernels in code.items() if waiver.excuses("spill", compiler)]
    named = [kernel for kernels in of for kernel in kernels if kernel.name == waiver.kernel]
    if any(kernel.spill_bytes for kernel in named):
        return ""
    if not of or (
        target.variant and not named
    ):  # the generation is not in the pack, or the variant excludes the kernel
        return ""
    return f"{waiver.kernel}: excused from spilling, but it does not spill; remove its exception"


def _problems(kernel: Kernel, target: Target, may_spill: bool) -> Iterator[str]:
    where = f"{kernel.file}: {kernel.name}"
    if kernel.spill_bytes and not may_spill:
        yield f"{where}: spills {kernel.spill_bytes} bytes of registers per thread, expected none"
    if kernel.stack_bytes and not kernel.spill_bytes:
        yield f"{where}: {kernel.stack_bytes} bytes of stack per thread, expected none (a computed array index?)"
    fits = max_threads(kernel.registers, target)
    if kernel.max_threads > fits:
        yield f"{where}: {kernel.registers} registers allow {fits} threads a block, it declares {kernel.max_threads}"
    limit = target.capabilities.shared_block_bytes
    if kernel.shared_bytes > limit:
        yield f"{where}: {kernel.shared_bytes} bytes of shared memory, {target.name} has {limit} for a block"


def matrix_problems(image: bytes, file: str, may_spill: Collection[str] = ()) -> Iterator[str]:
    """One line per kernel of a cubin whose loops lack its matrix instruction, have another one, or use local memory.
    may_spill: kernels whose loops may use local memory."""
    for name, counts in sass.loops(image, file).items():
        wanted = next((instruction for pattern, instruction in MATRIX.items() if re.fullmatch(pattern, name)), None)
        if wanted is None:
            continue
        if sass.architecture(image) < 75:
            wanted = OF_SM70.get(wanted, wanted)
        if set(counts) & set(sass.MATRIX.values()) != {wanted}:
            listed = ", ".join(f"{n} {one}" for one, n in sorted(counts.items())) or "no matrix instruction"
            yield f"{file}: {name}: expected {wanted} as the matrix instruction of its loops, got {listed}"
        if name not in may_spill and (n_local := sum(counts[one] for one in sass.LOCAL.values())):
            yield f"{file}: {name}: {n_local} accesses to local memory in its loops, expected none"


def max_threads(registers: int, target: Target) -> int:
    """The largest block that fits the register file with this many registers per thread."""
    if target.vendor == "nvidia":
        return REGISTER_FILE // max(_rounded(registers, NVIDIA_GRANULE), 1) // WAVE * WAVE
    if target.vendor == "amd":
        file, granule = LARGE_FILE if HAS_LARGE_FILE.fullmatch(target.architecture) else SMALL_FILE
        return file // max(_rounded(registers, granule), 1) * SIMDS * WAVE
    return 1 << 30  # the simulator's threads have no registers


def _rounded(value: int, step: int) -> int:
    return (value + step - 1) // step * step
