"""A kernel's entry in the manifest. Registers, stack and spills are per thread; shared memory is per block."""

from __future__ import annotations

from dataclasses import dataclass


class CodeError(Exception):
    """A compiled file has unexpected contents. The message names the file, the expected and the actual value."""


@dataclass(frozen=True, slots=True)
class Kernel:
    name: str
    file: str
    max_threads: int  # per block
    registers: int
    shared_bytes: int  # static, declared at compile time
    max_dynamic_shared_bytes: int  # that a launch may add
    spill_bytes: int
    stack_bytes: int
