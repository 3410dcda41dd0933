"""Reads the machine code of a cubin: the matrix instructions in the loops of its kernels.

An instruction has 16 bytes. Its low 12 bits are the opcode. NVIDIA documents neither these nor the place of a branch's
distance; both were compared with nvdisasm 13.0 for sm_75 to sm_121, in code by nvcc 13.0 and NVRTC 12.4 and 12.9. The
opcodes of sm_70 were found by counting opcodes in kernels with one kind of product.
"""

from __future__ import annotations

import struct
from collections import Counter

from pack.elf import Elf

BYTES = 16
# Opcodes. QMMA multiplies fp8, OMMA fp4; both have a form with scales. sm_70: HMMA is 0x236, IDP is dp4a.
MATRIX = {0x236: "HMMA", 0x226: "IDP", 0x23C: "HMMA", 0x237: "IMMA", 0x27A: "QMMA", 0x47A: "QMMA", 0x47F: "OMMA"}
BRANCHES = (0x947, 0x547)
LOCAL = {0x387: "STL", 0x983: "LDL"}  # spills
FAR = 10  # bits of the near part of a distance, from sm_90 on


def loops(image: bytes, file: str) -> dict[str, Counter[str]]:
    """The matrix instructions and the accesses to local memory in the loops of each kernel, by name."""
    chip = architecture(image)
    code = {section.name: section.data for section in Elf(image, file).sections if section.name.startswith(".text.")}
    return {name.removeprefix(".text."): in_loops(data, chip) for name, data in code.items()}


def architecture(image: bytes) -> int:
    """70 to 121, from the flags of the ELF header."""
    flags: int = struct.unpack_from("<I", image, 48)[0]
    return flags >> 8 & 0xFF if image[8] >= 8 else flags & 0xFF


def in_loops(data: bytes, architecture: int) -> Counter[str]:
    """Instructions between the target of a backward branch and that branch."""
    code = list(struct.iter_unpack("<QQ", data))
    in_loop = bytearray(len(code))
    for i, (low, high) in enumerate(code):
        if low & 0xFFF not in BRANCHES:
            continue
        target = i + 1 + distance(low, high, architecture) // BYTES
        if 0 <= target <= i:
            in_loop[target : i + 1] = b"\1" * (i + 1 - target)
    names = MATRIX | LOCAL
    opcodes = [low & 0xFFF for (low, _), is_in in zip(code, in_loop, strict=True) if is_in]
    return Counter(names[opcode] for opcode in opcodes if opcode in names)


def distance(low: int, high: int, architecture: int) -> int:
    """Bytes from the next instruction to the target."""
    far = (high & 0x3FFFF) << 32 | low >> 32
    far -= (far >> 49) << 50
    return far if architecture < 90 else (far >> 2 << FAR) + (low >> 16 & 0xFF) * 4
