"""Gated DeltaNet: chunks, trees and folds of accepted paths against the plain fp64 recurrence along each path."""

from __future__ import annotations

from typing import Any

import delta_cases
import numpy as np
import pytest
from delta_cases import *  # noqa: F403
from delta_cases import NOTHING, Inputs, Layer
from lucebox.selftest import ops
from reference import delta_net as reference
from tree_data import path_to, random_tree


@pytest.fixture
def on(isa: str) -> dict[str, Any]:
    return {"isa": isa}


@pytest.mark.parametrize("rows", (1, 31, 64))
def test_hard_inputs(isa: str, rows: int) -> None:
    delta_cases.check_hard_inputs({"isa": isa}, np.random.default_rng(rows), (2, 4, 32, 32), rows)


@pytest.mark.parametrize("rows", (1, 2, 16, 22, 64))
@pytest.mark.parametrize("decay", (0.05, 5.0))
def test_tree_rows_equal_their_paths(isa: str, rows: int, decay: float) -> None:
    rng, shape = np.random.default_rng(rows), (2, 4, 64, 32)
    layer, inputs = Layer({"isa": isa}, shape, rng), Inputs.random(shape, rows, rng, decay)
    parent, masks = random_tree(rows, rng)
    before = layer.S
    got = layer.run(inputs, parent=parent, ancestors=masks)
    assert np.array_equal(layer.S, before), "verification must not touch the state"
    paths = (inputs.rows(path_to(parent, i)) for i in range(rows))
    delta_cases.close({}, got, np.stack([reference.recurrence(*path.parts, before)[0][-1] for path in paths]))


@pytest.mark.parametrize("rows", (2, 9, 64))
def test_a_row_has_the_same_bits_alone(isa: str, rows: int) -> None:
    rng, shape = np.random.default_rng(rows), (2, 4, 40, 88)
    layer, inputs = Layer({"isa": isa}, shape, rng), Inputs.random(shape, rows, rng, 0.2)
    parent, masks = random_tree(rows, rng)
    fresh = layer.copy()
    tree = layer.run(inputs, parent=parent, ancestors=masks)
    for leaf in (rows - 1, rows // 2):
        alone, accepted = fresh.copy(), NOTHING
        for row in path_to(parent, leaf):
            o = alone.run(inputs.rows(slice(row, row + 1)), accepted)
            accepted = np.zeros(1, np.int32)
        assert np.array_equal(o[0], tree[leaf])


@pytest.mark.first_case
@pytest.mark.parametrize("rows", (1, 20, 64))
def test_threads_change_no_bit(isa: str, rows: int) -> None:
    shape, results = (1, 2, 128, 128), []
    for threads in (1, 2):
        rng = np.random.default_rng(6)
        layer = Layer({"isa": isa, "threads": threads}, shape, rng)
        layer.run(Inputs.random(shape, 64, rng, 1.0))
        o = layer.run(Inputs.random(shape, rows, rng, 1.0), np.arange(64, dtype=np.int32))
        results.append((o, *layer.everything(rows)))
    for one, two in zip(*results, strict=True):
        assert np.array_equal(one, two)


def test_conv_chain(isa: str) -> None:
    rng = np.random.default_rng(0)
    x, w, history = (delta_cases.normal(rng, *shape) for shape in ((64, 33), (33, 4), (3, 33)))
    pending = np.full((64, 33), np.nan, np.float32)
    y = ops.causal_conv(x, w, history, pending, isa=isa)[0]
    delta_cases.close({}, y, reference.causal_conv(x, w, history))
