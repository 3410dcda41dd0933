"""What the manifest says of one kernel. Registers are per thread, stack and spills too; shared memory is per block."""

from __future__ import annotations

from dataclasses import dataclass


class CodeError(Exception):
    """A compiled file does not hold what it should: which file, what was expected, what was found."""


@dataclass(frozen=True, slots=True)
class Kernel:
    name: str
    file: str
    max_threads: int  # of a block
    registers: int
    shared_bytes: int  # declared at compile time
    max_dynamic_shared_bytes: int  # what a launch may add
    spill_bytes: int
    stack_bytes: int
