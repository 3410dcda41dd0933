"""Layers with a window on a device: pages that the window has left are used again while steps run ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import Decoder, open_engine
from lucebox import _engine
from reference.gguf_files import Shape, metadata, tensors, write

SHAPE = Shape("llama", n_layers=2, n_heads=2, n_kv_heads=1, head_dim=64, vocab=96)
CONTEXT = 640  # 10 pages; a single session has 8 for the windows
OPTIONS: dict[str, Any] = {"context": CONTEXT, "kv_tokens": 2 * CONTEXT, "prefill_chunk": 128, "kv": "f16"}
PROMPT = [7 * i % 61 for i in range(470)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fields = {"general.architecture": "mistral3", "attention.sliding_window": 64}
    path = tmp_path_factory.mktemp("windows") / "model.gguf"
    return write(path, metadata(SHAPE) | fields, tensors(SHAPE))


@pytest.mark.slow  # 40 s: more rows than the pages of a window hold
@pytest.mark.parametrize("draft", ["none", "suffix"])
def test_steps_over_many_windows(pack: _engine.gpu.Pack, model: Path, draft: str) -> None:
    """The tokens of a session that keeps all pages: a prompt in chunks, steps or trees, a fork, and from the host.
    Steps have its bits too; a fork drafts other trees, whose rows may round differently."""
    roomy, tight = (open_engine(model, pack=pack, draft=draft, sessions=n, **OPTIONS) for n in (16, 1))
    plain, source = Decoder(roomy, PROMPT), Decoder(tight, PROMPT)
    made = plain.decode(40)
    assert source.decode(40) == made
    assert source.session.rewind_floor > plain.session.rewind_floor == 0
    fork = Decoder(tight, PROMPT[:3])
    fork.session.fork(source.session)
    source.session.swap_out()
    fork.ids, fork.sampler = list(source.ids), _engine.Sampler(fork.vocab)
    made = plain.decode(30)
    assert fork.decode(30) == made
    assert draft != "none" or np.array_equal(fork.session.logits(), plain.session.logits())
    fork.session.reset()
    assert source.decode(30) == made
