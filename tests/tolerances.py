"""Compares results with a reference, within the tolerances of tests/tolerances.toml."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLE: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "tolerances.toml").read_text())


def tolerance(family: str, name: str) -> float:
    """One tolerance; raises KeyError for an unknown name."""
    return float(TABLE[family][name])


def distance(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """1 - 2<a,b> / (<a,a> + <b,b>)."""
    norm = float((a * a).sum() + (b * b).sum())
    return float(((a - b) ** 2).sum()) / norm if norm else 0.0


def check(family: str, got: ArrayLike, want: ArrayLike, scale: ArrayLike | None = None) -> None:
    """Checks `got` against the family's tolerances: `diff` over all values, `element` for each value.

    An element's error is relative to its magnitude, or to `scale` if the reference is a sum whose terms cancel.
    """
    a, b = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert a.shape == b.shape, f"{family}: shape {a.shape}, expected {b.shape}"
    assert np.isfinite(a).all(), f"{family}: {np.count_nonzero(~np.isfinite(a))} values are not finite"
    limit = TABLE[family]
    unit = np.abs(b) if scale is None else np.broadcast_to(np.asarray(scale, np.float64), b.shape)
    error = np.abs(a - b) / np.maximum(unit, 1e-30)
    worst = np.unravel_index(int(error.argmax()), error.shape) if error.size else ()
    assert distance(a, b) < limit["diff"], f"{family}: diff {distance(a, b):.2e}, limit {limit['diff']:.0e}"
    assert not error.size or error[worst] < limit["element"], (
        f"{family}: element {worst} is {a[worst]:.8g}, expected {b[worst]:.8g}: {error[worst]:.2e} units apart, "
        f"limit {limit['element']:.0e}"
    )
