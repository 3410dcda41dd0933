"""The alphabet of byte-level BPE: each byte of UTF-8 text as one printable character.

Printable Latin-1 bytes stand for themselves. The other 68 map, in order, to U+0100 and up (GPT-2's table).
"""

from __future__ import annotations

__all__ = ["BYTE_TO_CHAR", "CHAR_TO_BYTE", "to_bytes"]

_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_SHIFTED = [byte for byte in range(256) if byte not in _PRINTABLE]

BYTE_TO_CHAR = tuple(chr(b) if b in _PRINTABLE else chr(0x100 + _SHIFTED.index(b)) for b in range(256))
CHAR_TO_BYTE = {char: byte for byte, char in enumerate(BYTE_TO_CHAR)}


def to_bytes(piece: str) -> bytes | None:
    """The bytes of a vocabulary piece; None when the piece has a character outside the alphabet."""
    try:
        return bytes([CHAR_TO_BYTE[char] for char in piece])
    except KeyError:
        return None
