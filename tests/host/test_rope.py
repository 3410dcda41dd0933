"""Rotary embedding against fp64: both pairings, partial rotation, three unequal position rows."""

from __future__ import annotations

import numpy as np
import op_cases
import pytest
from lucebox.selftest import ops, shapes
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
@pytest.mark.parametrize("shape", shapes.ROPES)
def test_rope(isa: str, pairs: str, shape: tuple[int, int, int, int]) -> None:
    op_cases.rope(np.random.default_rng(shape), *shape, pairs, isa=isa)


@pytest.mark.parametrize("pairs", ("halves", "adjacent"))
def test_threads_change_no_bit(isa: str, pairs: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(9, 3, 128)).astype(np.float32)
    cos, sin = rng.normal(size=(2, 9, 64)).astype(np.float32)
    assert np.array_equal(ops.rope(x, cos, sin, pairs, isa=isa), ops.rope(x, cos, sin, pairs, isa=isa, threads=2))
