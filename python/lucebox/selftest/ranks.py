"""Cases of exchanges between ranks. One device is both ranks: what it sends arrives in its own mailboxes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lucebox.selftest import shapes
from lucebox.selftest.case import Array, Case, case
from lucebox.selftest.inputs import normal

__all__ = ["exchanges"]


def exchanges(rng: np.random.Generator) -> Iterator[Case]:
    for count in shapes.EXCHANGES:
        yield case("loopback_sum", "exact", normal(rng, count), normal(rng, count), reference=_sum)
    for rows, width in shapes.GATHERS:
        yield case("loopback_gather", "exact", normal(rng, rows, width), reference=_gather)


def _sum(x: Array, add: Array) -> Array:
    return np.asarray(add + (x + x))


def _gather(x: Array) -> Array:
    return np.concatenate([x, x], axis=1)
