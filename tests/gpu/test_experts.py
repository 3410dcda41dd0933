"""Mixtures of experts on a device: the CPU's cases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import op_cases
import pytest
from engines import largest_difference, logits_of, open_engine, random_ids
from lucebox import _engine
from lucebox.errors import UnsupportedError
from lucebox.selftest import ops, shapes
from reference.decoder import Decoder
from reference.gguf_files import Shape, write_model
from tolerances import tolerance

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4", "IQ4_XS")


@pytest.mark.parametrize("is_normalized", [True, False])
@pytest.mark.parametrize("shape", shapes.ROUTES)
def test_route(pack: _engine.gpu.Pack, shape: tuple[int, int, int], is_normalized: bool, seed: int) -> None:
    op_cases.route_experts(np.random.default_rng(seed), *shape, is_normalized, pack=pack)


def test_a_nan_logit_ranks_last_and_spoils_the_weights(pack: _engine.gpu.Pack) -> None:
    logits = np.array([[1, np.nan, -np.inf, 2], [1, -0.0, 3, 0]], np.float32)
    experts, weights = ops.route_experts(logits, 4, 1, pack=pack)
    assert experts.tolist() == [[3, 0, 2, 1], [2, 0, 1, 3]]
    assert np.isnan(weights[0]).all() and abs(weights[1].sum() - 1) < 1e-6


@pytest.mark.parametrize("activations", ["int8", "f32"])
@pytest.mark.parametrize("shape", shapes.EXPERT_PRODUCTS)
@pytest.mark.parametrize("dtype", TYPES)
def test_products(pack: _engine.gpu.Pack, dtype: str, shape: tuple[int, ...], activations: str, seed: int) -> None:
    op_cases.expert_linear(np.random.default_rng(seed), dtype, *shape, activations, pack=pack)


def test_types_without_a_kernel_are_refused(pack: _engine.gpu.Pack) -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(UnsupportedError, match=r"no kernel reads experts of Q2_K on a GPU\. Use Q8_0"):
        op_cases.expert_linear(rng, "Q2_K", 1, 1, 2, 1, 8, 8, 0, "int8", pack=pack)


@pytest.mark.parametrize("has_all", [True, False])
@pytest.mark.parametrize("shape", shapes.COMBINATIONS)
def test_combine(pack: _engine.gpu.Pack, shape: tuple[int, int, int], has_all: bool, seed: int) -> None:
    op_cases.combine_experts(np.random.default_rng(seed), *shape, has_all, pack=pack)


HYBRID = Shape("qwen35moe", n_layers=2, recurrent=(True, False), head_dim=64, d_state=64)


@pytest.mark.parametrize(
    "shape",
    [HYBRID, replace(HYBRID, joined_experts=True), Shape("qwen3moe", n_layers=2, head_dim=64, expert_ffn=40)],
    ids=["qwen35moe", "joined", "qwen3moe"],
)
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_whole_models(pack: _engine.gpu.Pack, tmp_path: Path, shape: Shape, chunk: int) -> None:
    path, ids = write_model(tmp_path / "model.gguf", shape), random_ids(70, shape.vocab)
    got = logits_of(open_engine(path, pack=pack), ids, chunk)
    assert largest_difference(got, Decoder(path).logits(ids)) < tolerance("logits", "f32_device")
