"""Layers with a window on a device: pages that the window has left are used again while steps run ahead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpu_packs
import numpy as np
import pytest
from engines import Decoder, open_engine, random_ids
from lucebox import _engine
from lucebox.errors import OutOfMemoryError
from reference.gguf_files import Shape, metadata, tensors, write

SHAPE = Shape("llama", n_layers=2, n_heads=2, n_kv_heads=1, head_dim=64, vocab=96)
CONTEXT = 640  # 10 pages; a single session has 8 for the windows
OPTIONS: dict[str, Any] = {"context": CONTEXT, "kv_tokens": 2 * CONTEXT, "prefill_chunk": 128, "kv": "f16"}
PROMPT = [7 * i % 61 for i in range(470)]


def written(folder: Path, window: int) -> Path:
    fields = {"general.architecture": "mistral3", "attention.sliding_window": window}
    return write(folder / "model.gguf", metadata(SHAPE) | fields, tensors(SHAPE))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("windows"), 64)


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


@pytest.mark.slow  # 20 s: five chunks of 257 rows
def test_a_page_stays_until_all_devices_have_read_it(pack_folder: Path, tmp_path: Path) -> None:
    """A device computes a chunk when the next chunk already has its pages. Between the layers, other sessions write
    into every page that is free or spare, and end."""
    packs, model = gpu_packs.load_on_devices(pack_folder, 2), written(tmp_path, 512)
    chunk, ids = 257, random_ids(5 * 257 + 3, SHAPE.vocab, 1)
    options = {"context": 6 * chunk, "kv_tokens": 24 * chunk, "prefill_chunk": chunk, "kv": "f16", "sessions": 1}
    alone = open_engine(model, pack=packs[0], decode_path="graph", **options)
    split = open_engine(model, pack=packs[0], others=packs[1:], split="layer", **options)
    want, session = _engine.Session(alone), _engine.Session(split)
    want.sync(ids)
    n_refused = 0

    def write_pages() -> None:
        nonlocal n_refused
        others: list[_engine.Session] = []
        with pytest.raises(OutOfMemoryError):
            while True:
                others.append(_engine.Session(split))
                others[-1].sync(random_ids(90, SHAPE.vocab, len(others)))
        n_refused += 1

    session.sync(ids, between_layers=write_pages)
    assert n_refused > 4
    assert np.array_equal(session.logits(), want.logits())
