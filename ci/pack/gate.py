"""The rule every pack keeps: no kernel spills or needs a stack, and a full block of it fits the chip."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pack.kernel import Kernel
from targets import Target

REGISTER_FILE = 65536  # 32-bit registers of an NVIDIA SM; a thread's share is rounded up to 8
NVIDIA_GRANULE = 8
# gfx11 and gfx12 with the full register file: 1536 per lane and SIMD, four SIMDs in a workgroup processor, shared out
# in steps of 24 (LLVM's AMDGPU usage guide, VGPR allocation granularity).
SIMDS, SIMD_REGISTERS, AMD_GRANULE = 4, 1536, 24
WAVE = 32


def problems(kernels: Iterable[Kernel], target: Target) -> list[str]:
    """One line per broken rule, and per exception that excuses nothing."""
    excused = {waiver.kernel for waiver in target.exceptions if waiver.what == "spill"}
    kernels = list(kernels)
    found = [line for kernel in kernels for line in _problems(kernel, target, kernel.name in excused)]
    spilling = {kernel.name for kernel in kernels if kernel.spill_bytes}
    stale = sorted(excused - spilling)
    found += [f"{name}: excused from spilling, but it does not spill; remove its exception" for name in stale]
    return found


def _problems(kernel: Kernel, target: Target, may_spill: bool) -> Iterator[str]:
    where = f"{kernel.file}: {kernel.name}"
    if kernel.spill_bytes and not may_spill:
        yield f"{where}: spills {kernel.spill_bytes} bytes of registers per thread, expected none"
    if kernel.stack_bytes and not kernel.spill_bytes:
        yield f"{where}: {kernel.stack_bytes} bytes of stack per thread, expected none (a computed array index?)"
    fits = max_threads(kernel.registers, target.vendor)
    if kernel.max_threads > fits:
        yield f"{where}: {kernel.registers} registers allow {fits} threads a block, it declares {kernel.max_threads}"
    limit = target.capabilities.shared_block_bytes
    if kernel.shared_bytes > limit:
        yield f"{where}: {kernel.shared_bytes} bytes of shared memory, {target.name} has {limit} for a block"


def max_threads(registers: int, vendor: str) -> int:
    """Threads of one block that this many registers each leave room for."""
    if vendor == "nvidia":
        return REGISTER_FILE // max(_rounded(registers, NVIDIA_GRANULE), 1) // WAVE * WAVE
    if vendor == "amd":
        return SIMD_REGISTERS // max(_rounded(registers, AMD_GRANULE), 1) * SIMDS * WAVE
    return 1 << 30  # the simulator's threads have no registers to count


def _rounded(value: int, step: int) -> int:
    return (value + step - 1) // step * step
