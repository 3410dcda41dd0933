"""The gated activation of the feed-forward block in fp64."""

from __future__ import annotations

from numpy.typing import ArrayLike
from reference.rms_norm import F64, silu, wide


def swiglu(gate: ArrayLike, up: ArrayLike) -> F64:
    return silu(gate) * wide(up)
