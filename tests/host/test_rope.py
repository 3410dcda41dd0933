"""Rotary embedding against fp64: both pairings, partial rotation, three unequal position rows."""

from __future__ import annotations

import numpy as np
import pytest
from lucebox.selftest import ops
from reference import rope as reference
from tolerances import check


def m_rope_axis(n_pairs: int, sections: tuple[int, int, int]) -> np.ndarray:
    return np.array(
        [next((a for a in (1, 2) if i % 3 == a and i < 3 * sections[a]), 0) for i in range(n_pairs)], np.uint8
    )


def test_table_with_three_unequal_positions() -> None:
    pos = np.array([[0, 7, 100000, 262143], [3, 11, 5, 90000], [9, 1, 77777, 4]], np.int32)
    axis = m_rope_axis(32, (11, 11, 10))
    assert axis.tolist()[:6] == [0, 1, 2, 0, 1, 2] and axis.tolist()[-2:] == [0, 1]
    inv_freq = (1e7 ** (-np.arange(32) / 32)).astype(np.float32)
    for threads, scale in ((1, 1.0), (2, 1.0), (1, 1.375)):
        for got, want in zip(
            ops.rope_table(pos, axis, inv_freq, scale, threads=threads),
            reference.rope_table(pos, axis, inv_freq, scale),
            strict=True,
        ):
            check("rope", got, want, np.full_like(want, scale))


@pytest.mark.parametrize("pairs", ("halves", "adjacent"))
@pytest.mark.parametrize(("dim", "n_pairs"), ((8, 1), (64, 32), (256, 32), (128, 64), (80, 20), (24, 7)))
def test_rope(isa: str, pairs: str, dim: int, n_pairs: int) -> None:
    rng = np.random.default_rng(dim)
    x = rng.normal(size=(9, 3, dim)).astype(np.float32)
    angle = rng.uniform(-9, 9, (9, n_pairs))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    got = ops.rope(x, cos, sin, pairs, isa=isa)
    unit = np.abs(reference.rope(np.abs(x), np.ones_like(cos), np.zeros_like(sin), pairs)) + np.abs(
        reference.rope(x, np.zeros_like(cos), np.ones_like(sin), pairs)
    )
    check("rope", got, reference.rope(x, cos, sin, pairs), unit)
    assert np.array_equal(got[..., 2 * n_pairs :], x[..., 2 * n_pairs :])
    assert np.array_equal(got, ops.rope(x, cos, sin, pairs, isa=isa, threads=2))
