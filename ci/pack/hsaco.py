"""Reads the kernels of an AMD code object from the msgpack document in its AMDGPU note."""

from __future__ import annotations

import struct
from typing import Any

from pack.elf import Elf
from pack.kernel import CodeError, Kernel

METADATA = 32  # NT_AMDGPU_METADATA
REGISTER_BYTES = 4
# First byte of a msgpack number -> struct format of the rest.
NUMBERS = {0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
LENGTHS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}


def kernels(image: bytes, file: str, shared_block_bytes: int) -> list[Kernel]:
    documents = [content for kind, content in Elf(image, file).notes(b"AMDGPU") if kind == METADATA]
    if len(documents) != 1:
        raise CodeError(f"{file}: expected one AMDGPU metadata note, got {len(documents)}")
    try:
        metadata, _ = unpack(documents[0])
        return sorted(
            (_kernel(facts, file, shared_block_bytes) for facts in metadata["amdhsa.kernels"]), key=lambda k: k.name
        )
    except (KeyError, TypeError, struct.error, IndexError, ValueError) as error:
        raise CodeError(f"{file}: its AMDGPU metadata is not as expected: {error!r}") from None


def _kernel(facts: dict[str, Any], file: str, shared_block_bytes: int) -> Kernel:
    shared = facts[".group_segment_fixed_size"]
    if facts[".wavefront_size"] != 32:
        raise CodeError(f"{file}: {facts['.name']} has waves of {facts['.wavefront_size']}, expected 32")
    return Kernel(
        name=facts[".name"],
        file=file,
        max_threads=facts[".max_flat_workgroup_size"],
        registers=facts[".vgpr_count"],
        shared_bytes=shared,
        max_dynamic_shared_bytes=max(shared_block_bytes - shared, 0),
        spill_bytes=REGISTER_BYTES * (facts[".vgpr_spill_count"] + facts[".sgpr_spill_count"]),
        stack_bytes=facts[".private_segment_fixed_size"],
    )


def unpack(data: bytes, at: int = 0) -> tuple[Any, int]:
    """The msgpack value at offset `at`, and the offset after it. Supports only the types that the notes use."""
    kind = data[at]
    at += 1
    if kind < 0x80:
        return kind, at
    if kind >= 0xE0:
        return kind - 0x100, at
    if kind in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[kind], at
    if kind in NUMBERS:
        return struct.unpack_from(NUMBERS[kind], data, at)[0], at + struct.calcsize(NUMBERS[kind])
    if kind in LENGTHS:
        count = struct.unpack_from(LENGTHS[kind], data, at)[0]
        at += struct.calcsize(LENGTHS[kind])
    elif kind < 0xC0:
        count = kind & (0x1F if kind >= 0xA0 else 0x0F)
    else:
        raise ValueError(f"msgpack type {kind:#x}")
    if 0xA0 <= kind < 0xC0 or 0xD9 <= kind <= 0xDB:
        if at + count > len(data):
            raise ValueError("a string longer than the note")
        return data[at : at + count].decode(), at + count
    if 0x90 <= kind < 0xA0 or kind in (0xDC, 0xDD):
        items = []
        for _ in range(count):
            item, at = unpack(data, at)
            items.append(item)
        return items, at
    table = {}
    for _ in range(count):
        key, at = unpack(data, at)
        table[key], at = unpack(data, at)
    return table, at
