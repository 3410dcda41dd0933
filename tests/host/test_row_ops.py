"""Ops on rows on the CPU, with every instruction set, and what only the CPU promises: the same bits from any number of
threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from grow_tree_data import candidates
from lucebox.errors import InvalidRequestError
from lucebox.selftest import ops
from op_cases import *  # noqa: F403
from op_cases import normal
from reference.rms_norm import rms_norm
from reference.swiglu import swiglu
from tolerances import check


@pytest.fixture
def on(isa: str) -> dict[str, Any]:
    return {"isa": isa}


def test_eps_counts(isa: str) -> None:
    x, w = np.full((2, 1, 64), 1e-4, np.float32), np.ones(64, np.float32)
    x[1] = 0
    check("norm", ops.rms_norm(x, w, 1e-6, isa=isa), rms_norm(x, w, 1e-6))


def test_exponential_over_the_whole_range(isa: str) -> None:
    gate = np.linspace(-86, 86, 20011, dtype=np.float32)[None]
    check("norm", ops.swiglu(gate, np.ones_like(gate), isa=isa), swiglu(gate, np.ones_like(gate)))


def test_threads_change_no_bit(isa: str) -> None:
    rng = np.random.default_rng(0)
    table, ids = normal(rng, 40, 512).reshape(-1).view(np.uint8), rng.integers(0, 40, 33, np.int32)
    for op, *given in (
        (ops.rms_norm, normal(rng, 130, 1, 1024), np.ones(1024, np.float32), 1e-6),
        (ops.swiglu, *normal(rng, 2, 65, 1000)),
        (ops.rope, normal(rng, 9, 3, 128), *normal(rng, 2, 9, 64)),
        (ops.embed, table, "F32", 512, ids),
        (ops.block_conv, normal(rng, 16, 64), normal(rng, 3, 64), normal(rng, 16, 3, 4), 16),
    ):
        assert np.array_equal(op(*given, isa=isa), op(*given, isa=isa, threads=2))


def test_the_first_rows_are_the_tree_of_fewer_rows() -> None:
    """So a verify may take any number of rows before the tree is known."""
    ids, logprobs = candidates(np.random.default_rng(0), "ties", 1, 15, 8)
    root, n_past = np.array([3], np.int32), np.array([70], np.int32)
    whole = ops.grow_tree(ids, logprobs, root, n_past, 64, 64)
    for rows in (1, 2, 23, 63):
        part = ops.grow_tree(ids, logprobs, root, n_past, rows, rows)
        for name in ("tokens", "parents", "depths", "scores", "ancestors"):
            assert np.array_equal(part[name], whole[name][:, :rows]), name


def test_wrong_shape_is_named() -> None:
    with pytest.raises(InvalidRequestError, match=r"w must have shape \[8\], got \[7\]"):
        ops.rms_norm(np.zeros((1, 1, 8), np.float32), np.zeros(7, np.float32), 1e-6)
