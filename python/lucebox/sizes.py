"""Parses and formats sizes in bytes. Input: decimal units (kB, MB, GB, TB) or binary units (KiB, MiB, GiB, TiB).
Output: binary units, as in the memory plan."""

from __future__ import annotations

import re
from fractions import Fraction

from lucebox.errors import InvalidRequestError

__all__ = ["parse_size", "show_size"]

_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(?:([kmgt])(i?)b?|b)?", re.I)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(size: str | int) -> int:
    """Bytes of "2GB", "1.5 gb", "512MiB", "16G", "4096" or a number.

    Raises:
        InvalidRequestError: not a size, or not a whole number of bytes.
    """
    found = _SIZE.fullmatch(str(size).strip())
    base = 1024 if found and found[3] else 1000
    n_bytes = Fraction(found[1]) * base ** _POWERS.get((found[2] or "").lower(), 0) if found else Fraction(-1)
    if not 0 <= n_bytes < 2**63 or (0 < n_bytes < 1):
        raise InvalidRequestError(f"a size is a number of bytes, or has a unit, as 24GiB, 24GB or 512MiB; got {size!r}")
    return int(n_bytes)


def show_size(n_bytes: int) -> str:
    """Formats bytes with three digits and a unit: 11.5 MiB."""
    value = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} TiB"
