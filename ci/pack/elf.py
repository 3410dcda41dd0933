"""Reads 64-bit little-endian ELF, as far as code objects need it: sections, symbols, notes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from pack.kernel import CodeError

SHT_NOTE, SHT_NOBITS = 7, 8
STT_FUNC = 2


@dataclass(frozen=True, slots=True)
class Section:
    name: str
    kind: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Symbol:
    name: str
    kind: int
    other: int


class Elf:
    """The sections of an image. Raises CodeError if the image is not ELF or is truncated."""

    def __init__(self, image: bytes, file: str) -> None:
        self.file = file
        if image[:6] != b"\x7fELF\x02\x01":
            raise CodeError(f"{file}: expected a 64-bit little-endian ELF image, got {image[:6]!r}")
        try:
            self.sections = _sections(image)
            self.symbols = self._symbols()
        except (struct.error, IndexError, ValueError) as error:
            raise CodeError(f"{file}: the ELF image is damaged: {error}") from None

    def section(self, name: str) -> Section:
        for section in self.sections:
            if section.name == name:
                return section
        raise CodeError(f"{self.file}: expected a section {name}, there is none")

    def notes(self, owner: bytes) -> Iterator[tuple[int, bytes]]:
        """Type and content of each note with this owner."""
        for section in self.sections:
            if section.kind != SHT_NOTE:
                continue
            at = 0
            while at + 12 <= len(section.data):
                name_size, size, kind = struct.unpack_from("<3I", section.data, at)
                name = section.data[at + 12 : at + 12 + name_size].rstrip(b"\0")
                start = at + 12 + _padded(name_size)
                if name == owner:
                    yield kind, section.data[start : start + size]
                at = start + _padded(size)

    def _symbols(self) -> list[Symbol]:
        names = {section.name: section.data for section in self.sections}
        table, strings = names.get(".symtab", b""), names.get(".strtab", b"")
        rows = struct.iter_unpack("<IBBHQQ", table)
        return [Symbol(_string(strings, name), info & 15, other) for name, info, other, *_ in rows]


def _sections(image: bytes) -> list[Section]:
    (table,) = struct.unpack_from("<Q", image, 0x28)
    row_size, count, i_names = struct.unpack_from("<3H", image, 0x3A)
    (segments,) = struct.unpack_from("<Q", image, 0x20)
    segment_size, n_segments = struct.unpack_from("<2H", image, 0x36)
    if segments + segment_size * n_segments > len(image):
        raise ValueError(f"its program headers end beyond its {len(image)} bytes")
    rows = [struct.unpack_from("<IIQQQQIIQQ", image, table + i * row_size) for i in range(count)]
    data = [b"" if kind == SHT_NOBITS else image[at : at + size] for _, kind, _, _, at, size, *_ in rows]
    for (_, kind, _, _, at, size, *_), content in zip(rows, data, strict=True):
        if kind != SHT_NOBITS and len(content) != size:
            raise ValueError(f"a section of {size} bytes at {at} in an image of {len(image)}")
    return [
        Section(_string(data[i_names], name), kind, content)
        for (name, kind, *_), content in zip(rows, data, strict=True)
    ]


def _string(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode()


def _padded(size: int) -> int:
    return (size + 3) // 4 * 4
