"""Families on a device, against transformers' outputs of random checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import Decoder, largest_difference, logits_of, open_engine
from lucebox import _engine
from reference import convert
from reference.gguf_files import Shape, metadata, tensors, write
from test_tiny_models import OF_TRANSFORMERS
from tolerances import tolerance


@pytest.mark.parametrize("chunk", [1, 100])
@pytest.mark.parametrize("name", OF_TRANSFORMERS)
def test_logits(pack: _engine.gpu.Pack, data: Path, tmp_path: Path, name: str, chunk: int) -> None:
    """GGUF in F32, and the checkpoint in BF16 with keys and values in F16, as users run it."""
    arrays = np.load(data / "tiny" / f"{name}.npz")
    exact = convert.to_gguf(data / "tiny" / name, tmp_path / "model.gguf")
    for model, kv, level in ((exact, "f32", "f32_device"), (data / "tiny" / name, "f16", "half_device")):
        got = logits_of(open_engine(model, pack=pack, prefill_chunk=128, kv=kv), arrays["ids"], chunk)
        assert largest_difference(got, arrays["logits"]) < tolerance("logits", level)


LLAMA = Shape("llama", n_layers=4, hidden=256, ffn=256, n_heads=4, head_dim=64, tied=True)
FIELDS: dict[str, dict[str, Any]] = {
    "smollm3": {},
    "mistral3": {"attention.temperature_scale": 0.5, "rope.scaling.original_context_length": 4},
}


@pytest.mark.parametrize("name", FIELDS)
def test_decoding_paths_agree(pack: _engine.gpu.Pack, tmp_path: Path, name: str) -> None:
    """Layers without position embedding and queries that grow, in the graph and in the megakernel."""
    fields = metadata(LLAMA) | FIELDS[name] | {"general.architecture": name}
    path = write(tmp_path / "model.gguf", fields, tensors(LLAMA))
    graph, mega = (
        Decoder(open_engine(path, pack=pack, decode_path=way), [3, 1, 4, 1, 5]) for way in ("graph", "megakernel")
    )
    assert mega.decode(6) == graph.decode(6)
    assert largest_difference(mega.session.logits(), graph.session.logits()) < tolerance("logits", "f32_device")
    assert mega.session.decode_path.startswith("megakernel_plain_")
    plain = write(tmp_path / "plain.gguf", metadata(LLAMA), tensors(LLAMA))
    other = Decoder(open_engine(plain, pack=pack, decode_path="graph"), graph.ids)
    assert largest_difference(other.session.logits(), graph.session.logits()) > tolerance("logits", "f32_device")
