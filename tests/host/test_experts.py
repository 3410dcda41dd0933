"""Mixtures of experts on the CPU: what only the CPU promises. Their cases are in op_cases.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lucebox.selftest import ops
from numpy.typing import NDArray
from reference.linear import block_size, random_weights

F32 = NDArray[np.float32]
N, ROWS, K = 9, 70, 3


def experts(dtype: str, seed: int) -> tuple[Any, ...]:
    """(gate, up, down, types, n, ffn, x, experts, weights), with small values, so that sums stay small."""
    rng, values = np.random.default_rng(seed), max(block_size(dtype)[0], 32)
    dim, ffn = values, 2 * values
    gate, up, down = (random_weights(dtype, N * dim * ffn, rng) for _ in range(3))
    x = rng.normal(0, dim**-0.5, (ROWS, dim)).astype(np.float32)
    chosen = np.array([rng.permutation(N)[:K] for _ in range(ROWS)], np.int32)
    return gate, up, down, (dtype,) * 3, N, ffn, x, chosen, rng.normal(size=(ROWS, K)).astype(np.float32)


def test_threads_change_no_bit(isa: str, seed: int) -> None:
    one, two = (ops.mix_experts(*experts("F32", seed), isa=isa, threads=n) for n in (1, 2))
    assert np.array_equal(one, two)


@pytest.mark.parametrize("activations", ["int8", "f32"])
@pytest.mark.parametrize("dtype", ["F32", "BF16", "Q8_0", "Q4_K", "MXFP4"])
def test_a_mixture_has_the_bits_of_its_parts(isa: str, dtype: str, activations: str, seed: int) -> None:
    """Each choice alone: products of its expert, the gated activation, and sums in order of rank."""
    given = experts(dtype, seed)
    gate, up, down, _, _, ffn, x, chosen, weights = given
    dim = x.shape[1]

    def product(w: NDArray[np.uint8], expert: int, n_out: int, values: F32) -> F32:
        own = np.ascontiguousarray(w.reshape(N, -1)[expert])
        got: F32 = ops.linear(own, dtype, n_out, len(values), values[None], None, activations, isa=isa)
        return got

    want = np.zeros((ROWS, dim), np.float32)
    for row, j in np.ndindex(chosen.shape):
        expert = int(chosen[row, j])
        act = ops.swiglu(product(gate, expert, ffn, x[row]), product(up, expert, ffn, x[row]), isa=isa)
        want[row] += weights[row, j] * product(down, expert, dim, act[0])[0]
    assert np.array_equal(ops.mix_experts(*given, activations=activations, isa=isa), want)


def test_rows_change_no_bit(isa: str, seed: int) -> None:
    *of_all, x, chosen, weights = experts("Q8_0", seed)
    together = ops.mix_experts(*of_all, x, chosen, weights, isa=isa)
    for row in (0, 33, 69):
        alone = ops.mix_experts(*of_all, *(rows[row : row + 1] for rows in (x, chosen, weights)), isa=isa)
        assert np.array_equal(alone[0], together[row])
