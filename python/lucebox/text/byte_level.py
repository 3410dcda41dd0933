"""The alphabet of byte-level BPE: each byte of UTF-8 text as one printable character.

Printable Latin-1 bytes stand for themselves. The other 68 map, in order, to U+0100 and up (GPT-2's table).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

__all__ = ["BYTE_TO_CHAR", "pieces_to_bytes"]

_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_SHIFTED = [byte for byte in range(256) if byte not in _PRINTABLE]

BYTE_TO_CHAR = tuple(chr(b) if b in _PRINTABLE else chr(0x100 + _SHIFTED.index(b)) for b in range(256))

_BYTE_OF = np.full(0x200, -1, np.int16)  # by character; -1: outside the alphabet, as the last one
_BYTE_OF[[ord(char) for char in BYTE_TO_CHAR]] = range(256)


def pieces_to_bytes(pieces: Sequence[str]) -> list[bytes]:
    """The bytes of a vocabulary's pieces; of a piece with a character outside the alphabet, its UTF-8."""
    chars = np.frombuffer("".join(pieces).encode("utf-32-le"), np.uint32)
    codes = _BYTE_OF[np.minimum(chars, len(_BYTE_OF) - 1)]
    data = codes.astype(np.uint8).tobytes()
    ends = np.cumsum([0, *map(len, pieces)])
    table = [data[start:end] for start, end in pairwise(ends.tolist())]
    for i in set((np.searchsorted(ends, np.flatnonzero(codes < 0), "right") - 1).tolist()):
        table[i] = pieces[i].encode()
    return table
