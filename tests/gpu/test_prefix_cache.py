"""Prefix reuse on a device: kernels depend on the number of rows, but reuse changes no bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conversations import Conversation, check, cold, replay, warm
from engines import open_engine, random_ids
from lucebox import _engine
from lucebox.generation.prefix_cache import PrefixCache
from reference.gguf_files import Shape, write_model

SHAPES = {
    "qwen35": Shape(n_layers=2, recurrent=(True, False), hidden=64, ffn=64, n_heads=2, n_kv_heads=1, head_dim=64),
    "qwen3": Shape("qwen3", n_layers=2, hidden=64, ffn=64, n_heads=2, n_kv_heads=1, head_dim=64),
}
VOCAB = SHAPES["qwen35"].vocab
KV_TYPES = ("f16", "q8_0", "wht4/q4_0", "tq3_0", "q5_1/wht3", "fp8/bf16")
Open = Callable[[int], _engine.Engine]


@pytest.fixture(params=SHAPES)
def open_model(request: pytest.FixtureRequest, pack: _engine.gpu.Pack, tmp_path: Path, seed: int) -> Open:
    path = write_model(tmp_path / "model.gguf", SHAPES[request.param])
    kv = KV_TYPES[seed % len(KV_TYPES)]
    options = {"activations": "int8", "kv": kv, "context": 1024, "pack": pack}
    return lambda chunk: open_engine(path, prefill_chunk=chunk, **options)


def test_turns_have_the_bits_of_cold_runs(open_model: Open, seed: int) -> None:
    talk = Conversation(VOCAB, np.random.default_rng(seed), 70, 512)
    reused = list(replay(open_model(64), PrefixCache(1 << 30), talk, 5, n_answer=2, cold_every=2))
    assert sorted(reused) == reused, seed


def test_pieces_move_over_a_restart(open_model: Open, tmp_path: Path) -> None:
    engine, ids = open_model(64), random_ids(70, VOCAB)
    for reused in (0, 64):
        session, cache = _engine.Session(engine), PrefixCache(1 << 30, tmp_path / "cache", "model")
        got = warm(session, cache, ids, [], 2, 0)
        check(got, cold(_engine.Session(engine), ids, [], 2, 0), reused)
        assert got.reused == reused
        cache.close()


def test_a_step_on_its_way_does_not_show(open_model: Open) -> None:
    """While the device computes ahead, restored and read state covers only committed tokens."""
    engine, ids = open_model(64), random_ids(68, VOCAB)
    session, cache = _engine.Session(engine), PrefixCache(1 << 30)
    want = cold(_engine.Session(engine), ids, [], 4, 1)
    for _ in range(3):
        got = warm(session, cache, ids, [], 4, 1)
        check(got, want, got.reused)
        cache.store(session, ids)
    assert got.reused == 64
