"""Families on a device, against transformers' outputs of random checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engines import Decoder, largest_difference, logits_of, logits_of_steps, open_engine
from lucebox import _engine
from lucebox.errors import UnsupportedError
from reference import convert
from reference.gguf_files import Shape, metadata, tensors, write
from test_tiny_models import OF_TRANSFORMERS
from tolerances import tolerance

# Steps begin before the windows and the first range of rope are full, at 64 tokens, and end after.
PROMPT, STEPS = 56, 14
# Other tests here and in test_tensor_split.py cover the features of the other models.
EVERYDAY = ("phi3_a", "mistral3_a", "gemma4_b")


@pytest.mark.parametrize("way", ["steps", pytest.param("prompt", marks=pytest.mark.slow)])  # steps begin with a prompt
@pytest.mark.parametrize(
    "name",
    [name if name in EVERYDAY else pytest.param(name, marks=pytest.mark.slow) for name in OF_TRANSFORMERS],  # 2 s each
)
def test_logits(pack: _engine.gpu.Pack, data: Path, tmp_path: Path, name: str, way: str) -> None:
    """GGUF in F32, and the checkpoint in BF16 with keys and values in F16, as users run it."""
    arrays = np.load(data / "tiny" / f"{name}.npz")
    exact = convert.to_gguf(data / "tiny" / name, tmp_path / "model.gguf")
    for model, kv, level in ((exact, "f32", "f32_device"), (data / "tiny" / name, "f16", "half_device")):
        engine, ids = open_engine(model, pack=pack, prefill_chunk=128, kv=kv), arrays["ids"]
        got = logits_of(engine, ids, 100) if way == "prompt" else logits_of_steps(engine, ids[: PROMPT + STEPS], PROMPT)
        assert largest_difference(got, arrays["logits"][: len(got)]) < tolerance("logits", level)


LLAMA = Shape("llama", n_layers=4, hidden=256, ffn=256, n_heads=4, head_dim=64, tied=True)
IDS = [3, 1, 4, 1, 5]


@pytest.mark.parametrize("way", ["megakernel", pytest.param("auto", marks=pytest.mark.slow)])  # 2 s each
def test_layers_without_position_embedding(pack: _engine.gpu.Pack, tmp_path: Path, way: str) -> None:
    """In the graph and in the megakernel."""
    path = write(tmp_path / "model.gguf", metadata(LLAMA) | {"general.architecture": "smollm3"}, tensors(LLAMA))
    graph, other = (Decoder(open_engine(path, pack=pack, decode_path=path_), IDS) for path_ in ("graph", way))
    assert other.decode(6) == graph.decode(6)
    assert largest_difference(other.session.logits(), graph.session.logits()) < tolerance("logits", "f32_device")
    assert way == "auto" or other.session.decode_path.startswith("megakernel_plain_")
    assert differs_from_plain(pack, tmp_path, graph)


def test_queries_that_grow(pack: _engine.gpu.Pack, tmp_path: Path) -> None:
    """In the graph only."""
    fields = {"attention.temperature_scale": 0.5, "rope.scaling.original_context_length": 4}
    path = write(
        tmp_path / "model.gguf", metadata(LLAMA) | fields | {"general.architecture": "mistral3"}, tensors(LLAMA)
    )
    graph = Decoder(open_engine(path, pack=pack), IDS)
    graph.decode(6)
    assert graph.session.decode_path.startswith("graph") and differs_from_plain(pack, tmp_path, graph)
    with pytest.raises(UnsupportedError, match="angles of queries alone"):
        Decoder(open_engine(path, pack=pack, decode_path="megakernel"), IDS)


def differs_from_plain(pack: _engine.gpu.Pack, tmp_path: Path, decoder: Decoder) -> bool:
    """Whether the same weights as a Llama have other logits."""
    plain = write(tmp_path / "plain.gguf", metadata(LLAMA), tensors(LLAMA))
    other = Decoder(open_engine(plain, pack=pack, decode_path="graph"), decoder.ids)
    return largest_difference(other.session.logits(), decoder.session.logits()) > tolerance("logits", "f32_device")
