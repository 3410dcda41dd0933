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
from lucebox.generation.prefix_cache import PrefixCache, append_ends
from prefix_walk import PrefixWalk
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


def test_stored_states_share_pages(pack: _engine.gpu.Pack, model: Path) -> None:
    """A prefix continues with the same bits from pages that it shares, and from bytes once they have left."""
    engine = open_engine(model, pack=pack, sessions=2, **OPTIONS | {"prefill_chunk": 64})
    session, other, cache = _engine.Session(engine), _engine.Session(engine), PrefixCache(1 << 30, engine=engine)
    n_free, ids = engine.n_free_window_pages, random_ids(130, SHAPE.vocab)
    list(cache.prefill(session, ids))
    expected = session.logits()
    session.reset()
    assert n_free - engine.n_free_window_pages == 2 and cache.stats().memory_bytes == 0
    for _ in range(2):
        assert list(cache.prefill(other, ids)) == [128, 130]
        assert np.array_equal(other.logits(), expected)
        other.reset()
        while cache.drop_pages():
            pass
    assert engine.n_free_window_pages == n_free


@pytest.mark.slow  # 11 s: dozens of prompts
@pytest.mark.parametrize("sessions", [1, 2])
def test_a_walk_over_stored_states(pack: _engine.gpu.Pack, model: Path, seed: int, sessions: int) -> None:
    options = OPTIONS | {"prefill_chunk": 64}
    engine, roomy = (open_engine(model, pack=pack, sessions=n, **options) for n in (sessions, 16))
    walk = PrefixWalk(engine, roomy, SHAPE.vocab, np.random.default_rng(seed))
    for _ in range(24):
        walk.step(320, 3)
    walk.end()
    assert walk.counts["reused"] > 0 and walk.counts["moved"] > 0, seed


@pytest.mark.slow  # 19 s: prompts of many chunks on two devices
def test_stored_states_leave_in_the_middle_of_a_sync(pack_folder: Path, tmp_path: Path) -> None:
    """A sync of several chunks takes window pages one chunk at a time. When they end, states move to main memory."""
    packs, model = gpu_packs.load_on_devices(pack_folder, 2), written(tmp_path, 64)
    options = {"context": 20 * 64, "kv_tokens": 80 * 64, "prefill_chunk": 64, "kv": "f16", "sessions": 1}
    alone = _engine.Session(open_engine(model, pack=packs[0], **options))
    split = open_engine(model, pack=packs[0], others=packs[1:], split="layer", **options)
    session, cache = _engine.Session(split), PrefixCache(1 << 30, engine=split)
    for seed in range(3):
        ids = random_ids(18 * 64 + 3, SHAPE.vocab, seed)
        list(cache.prefill(session, ids))
        for end in append_ends(len(ids), (), 64):
            alone.sync(ids[:end])
        assert np.array_equal(session.logits(), alone.logits())
        session.reset()
    assert cache.stats().memory_bytes > 0
    cache.close()
