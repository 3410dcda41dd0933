"""Families on a device, against transformers' outputs of random checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engines import largest_difference, logits_of, open_engine
from lucebox import _engine
from reference import convert
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
