"""Mixtures of experts on a device; the cases of their ops are in op_cases.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engines import largest_difference, logits_of, mean_kl, open_engine, random_ids
from lucebox import _engine
from lucebox.errors import UnsupportedError
from lucebox.selftest import ops
from reference.decoder import Decoder
from reference.gguf_files import Shape, write_model
from tolerances import tolerance


def test_types_without_a_kernel_are_refused(pack: _engine.gpu.Pack) -> None:
    w, x = np.zeros(2 * 256 * 84, np.uint8), np.ones((1, 256), np.float32)
    one = np.zeros((1, 1), np.int32), np.ones((1, 1), np.float32)
    with pytest.raises(UnsupportedError, match=r"no kernel reads experts of Q2_K on a GPU\. Use Q8_0"):
        ops.mix_experts(w, w, w, ("Q2_K",) * 3, 2, 256, x, *one, pack=pack)


HYBRID = Shape("qwen35moe", n_layers=2, recurrent=(True, False), head_dim=64, d_state=64)


SHAPES = {
    "qwen35moe": HYBRID,
    "joined": replace(HYBRID, joined_experts=True),
    "qwen3moe": Shape("qwen3moe", n_layers=2, head_dim=64, expert_ffn=40),
    "gpt-oss": Shape("gpt-oss", n_layers=2, n_heads=8, head_dim=64, expert_ffn=40, yarn=32.0),
}
EVERYDAY = {("qwen35moe", 7), ("joined", 64), ("qwen3moe", 1), ("gpt-oss", 7)}


@pytest.mark.parametrize(
    ("name", "chunk"),
    [
        pytest.param(name, chunk, marks=[] if (name, chunk) in EVERYDAY else pytest.mark.slow)  # 1.5 s each
        for name in SHAPES
        for chunk in (1, 7, 64)
    ],
)
def test_whole_models(pack: _engine.gpu.Pack, tmp_path: Path, name: str, chunk: int) -> None:
    shape = SHAPES[name]
    path, ids = write_model(tmp_path / "model.gguf", shape), random_ids(100, shape.vocab)
    got = logits_of(open_engine(path, pack=pack), ids, chunk)
    assert largest_difference(got, Decoder(path).logits(ids)) < tolerance("logits", "f32_device")


@pytest.mark.parametrize("chunk", [1, 7, 200])
def test_gpt_oss_of_a_checkpoint(pack: _engine.gpu.Pack, data: Path, chunk: int) -> None:
    """Golden logits of transformers, from safetensors with experts in MXFP4; windows hide rows of a prompt too."""
    arrays = np.load(data / "tiny" / "gpt_oss_a.npz")
    ids = arrays["ids"][: 100 if chunk == 1 else 200]
    path = data / "tiny" / "gpt_oss_a"
    got = logits_of(open_engine(path, pack=pack, prefill_chunk=256), ids, chunk)
    assert largest_difference(got, arrays["logits"][: len(ids)]) < tolerance("logits", "half_device")
    rounded = logits_of(open_engine(path, pack=pack, prefill_chunk=256, activations="int8", kv="f16"), ids, chunk)
    assert mean_kl(arrays["logits"][: len(ids)], rounded) < tolerance("kl", "int8")
