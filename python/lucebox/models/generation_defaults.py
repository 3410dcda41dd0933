"""Normalises the sampling that a model's makers recommend to the ranges of `Sampling`.

Published files contain values that other loaders ignore or read as "off", such as top_k -1. They must not make a
default request fail.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["checked_defaults"]

# (lowest, highest) of each option; an exclusive bound of 0 is the smallest number above it.
_ABOVE_0 = math.ulp(0.0)
_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_p": (_ABOVE_0, 1),
    "min_p": (0, 1),
    "typical_p": (_ABOVE_0, 1),
    "repetition_penalty": (_ABOVE_0, 100),
    "frequency_penalty": (-100, 100),
    "presence_penalty": (-100, 100),
}
_MAX_TOP_K = (1 << 31) - 1


def checked_defaults(found: Mapping[str, Any], where: str, notes: list[str]) -> dict[str, Any]:
    """The usable values; appends a sentence to `notes` about each unusable one.

    top_k below 1 becomes 0, which keeps all tokens. Keys that are no sampling options stay as they are.
    """
    result: dict[str, Any] = {}
    for key, value in found.items():
        if value is None or (key != "top_k" and key not in _RANGES):
            result[key] = value
            continue
        kept = _usable(key, value)
        if kept is None:
            notes.append(f"{where}: {key} is {ascii(value)[:40]}, which is out of range; it is not used")
        else:
            result[key] = kept
    return result


def _usable(key: str, value: object) -> float | int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    if key == "top_k":
        return max(0, int(value)) if value == int(value) and value <= _MAX_TOP_K else None
    low, high = _RANGES[key]
    return value if low <= value <= high else None
