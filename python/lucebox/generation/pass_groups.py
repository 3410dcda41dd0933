"""Which sequences decode in the same pass. Where devices compute one after the other, each its layers, sequences decode
in a group per device: while a device computes the pass of one group, the others compute the passes of other groups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

__all__ = ["pass_groups"]

MIN_GROUP = 2  # sequences; a single row has other kernels than the rows of passes
T = TypeVar("T")


def pass_groups(sequences: Sequence[T], max_groups: int) -> list[Sequence[T]]:
    """At most max_groups groups of nearly equal size."""
    n = max(1, min(max_groups, len(sequences) // MIN_GROUP))
    bounds = [len(sequences) * i // n for i in range(n + 1)]
    return [sequences[start:end] for start, end in pairwise(bounds)]
