"""Reads the kernels of a cubin. Threads, registers and stack come from the ELF image. Spills and shared memory come
from the log of ptxas -v, because the image includes the 1 KiB that sm_90 and later reserve. The registers in both must
agree."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from pack.elf import STT_FUNC, Elf
from pack.kernel import CodeError, Kernel

ENTRY = 0x10  # in st_other: the symbol is a kernel, not a device function
# Attributes of the sections .nv.info and .nv.info.<kernel>
MAX_THREADS, MIN_STACK_SIZE, REGCOUNT = 0x05, 0x12, 0x2F
HAS_PAYLOAD = 4

COMPILING = re.compile(r"ptxas info\s*: Compiling entry function '(\w+)'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"ptxas info\s*: Used (\d+) registers(?:.*?(\d+) bytes smem)?")


@dataclass(slots=True)
class Logged:
    """A kernel's resources in the ptxas log."""

    registers: int = 0
    shared_bytes: int = 0
    spill_bytes: int = 0


def kernels(image: bytes, log: str, file: str, shared_block_bytes: int) -> list[Kernel]:
    try:
        return _kernels(Elf(image, file), log, file, shared_block_bytes)
    except (struct.error, KeyError) as error:
        raise CodeError(f"{file}: its .nv.info is not as expected: {error!r}") from None


def _kernels(elf: Elf, log: str, file: str, shared_block_bytes: int) -> list[Kernel]:
    entries = {i: s.name for i, s in enumerate(elf.symbols) if s.kind == STT_FUNC and s.other & ENTRY}
    registers: dict[int, int] = {}
    stack: dict[int, int] = {}
    for attribute, payload in _attributes(elf.section(".nv.info").data):
        if attribute in (REGCOUNT, MIN_STACK_SIZE):
            symbol, value = struct.unpack("<II", payload)
            (registers if attribute == REGCOUNT else stack)[symbol] = value
    logged = _log(log)
    found = []
    for symbol, name in entries.items():
        own = dict(_attributes(elf.section(f".nv.info.{name}").data))
        if MAX_THREADS not in own:
            raise CodeError(f"{file}: {name} does not say its most threads per block; define it with LB_KERNEL")
        log_of = logged.get(name, Logged())
        if log_of.registers != registers[symbol]:
            raise CodeError(
                f"{file}: {name} has {registers[symbol]} registers, the log of ptxas says {log_of.registers}"
            )
        x, y, z = struct.unpack("<3I", own[MAX_THREADS])
        found.append(
            Kernel(
                name=name,
                file=file,
                max_threads=x * y * z,
                registers=registers[symbol],
                shared_bytes=log_of.shared_bytes,
                max_dynamic_shared_bytes=max(shared_block_bytes - log_of.shared_bytes, 0),
                spill_bytes=log_of.spill_bytes,
                stack_bytes=stack[symbol],
            )
        )
    return sorted(found, key=lambda kernel: kernel.name)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == HAS_PAYLOAD:
            yield attribute, data[at : at + size]
            at += size


def _log(log: str) -> dict[str, Logged]:
    """Parses the log into resources by kernel. A function that was not inlined adds its spills to the kernel before it
    in the log."""
    facts: dict[str, Logged] = {}
    kernel = Logged()  # collects lines before the first kernel
    for line in log.splitlines():
        if found := COMPILING.search(line):
            kernel = facts[found[1]] = Logged()
        elif found := SPILLS.search(line):
            kernel.spill_bytes += max(int(found[2]), int(found[3]))
        elif found := USED.search(line):
            kernel.registers, kernel.shared_bytes = int(found[1]), int(found[2] or 0)
    return facts
