"""Mixtures of experts on the CPU against fp64."""

from __future__ import annotations

import numpy as np
import op_cases
import pytest
from lucebox.selftest import ops, shapes


@pytest.mark.parametrize("is_normalized", [True, False])
@pytest.mark.parametrize("shape", shapes.ROUTES)
def test_route(isa: str, shape: tuple[int, int, int], is_normalized: bool, seed: int) -> None:
    op_cases.route_experts(np.random.default_rng(seed), *shape, is_normalized, isa=isa)


def test_a_nan_logit_ranks_last_and_spoils_the_weights(isa: str) -> None:
    logits = np.array([[1, np.nan, -np.inf, 2], [1, 0, 3, 2]], np.float32)
    experts, weights = ops.route_experts(logits, 4, 1, isa=isa)
    assert experts.tolist() == [[3, 0, 2, 1], [2, 3, 0, 1]]
    assert np.isnan(weights[0]).all() and abs(weights[1].sum() - 1) < 1e-6


@pytest.mark.parametrize("activations", ["int8", "f32"])
@pytest.mark.parametrize("shape", shapes.EXPERT_PRODUCTS)
@pytest.mark.parametrize("dtype", ["F32", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "MXFP4", "IQ4_XS"])
def test_products(isa: str, dtype: str, shape: tuple[int, ...], activations: str, seed: int) -> None:
    op_cases.expert_linear(np.random.default_rng(seed), dtype, *shape, activations, isa=isa)


@pytest.mark.parametrize("has_all", [True, False])
@pytest.mark.parametrize("shape", shapes.COMBINATIONS)
def test_combine(isa: str, shape: tuple[int, int, int], has_all: bool, seed: int) -> None:
    op_cases.combine_experts(np.random.default_rng(seed), *shape, has_all, isa=isa)


def test_threads_change_no_bit(isa: str) -> None:
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(9, 64, 96)).astype(np.float32), rng.normal(size=(70, 96)).astype(np.float32)
    experts = np.array([rng.permutation(9)[:3] for _ in range(70)], np.int32)
    one, two = (
        ops.expert_linear(w.view(np.uint8).reshape(-1), "F32", 9, 64, x, experts, isa=isa, threads=n) for n in (1, 2)
    )
    assert np.array_equal(one, two)
