"""Prefix reuse on a device: kernels depend on the number of rows, but reuse changes no bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conversations import Conversation, check, cold, replay, warm
from engines import open_engine, random_ids
from lucebox import _engine
from lucebox.generation.prefix_cache import PrefixCache, state_bytes
from reference.gguf_files import Shape, write_model

SHAPES = {
    "qwen35": Shape(n_layers=2, recurrent=(True, False), hidden=64, ffn=64, n_heads=2, n_kv_heads=1, head_dim=64),
    "qwen3": Shape("qwen3", n_layers=2, hidden=64, ffn=64, n_heads=2, n_kv_heads=1, head_dim=64),
}
VOCAB = SHAPES["qwen35"].vocab
KV_TYPES = ("f16", "q8_0", "wht4/q4_0", "tq3_0", "q5_1/wht3", "fp8/bf16")
Open = Callable[[int], _engine.Engine]


@pytest.fixture(params=["qwen35", pytest.param("qwen3", marks=pytest.mark.slow)])  # 10 s
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


@pytest.mark.slow  # 2 s
def test_generated_tokens_are_computed_again(open_model: Open) -> None:
    """A cold run computes them as part of a prompt, not one by one."""
    engine = open_model(64)
    cache, session = PrefixCache(1 << 30), _engine.Session(engine)
    prompt = random_ids(70, VOCAB)
    answer = warm(session, cache, prompt, [], 60, 0)
    cache.store(session, np.array(session.tokens, np.int32))
    longer = np.concatenate([prompt, np.array(answer.ids, np.int32), prompt[:5]])
    got = warm(session, cache, longer, [], 2, 1)
    assert got.reused == 64
    check(got, cold(_engine.Session(engine), longer, [], 2, 1), "longer")


def test_what_was_computed_otherwise_is_not_kept(open_model: Open) -> None:
    cache, session = PrefixCache(1 << 30), _engine.Session(open_model(64))
    ids = random_ids(200, VOCAB)
    for n in (50, 128, 192):
        session.sync(ids[:n])
    cache.store(session, ids)
    assert cache.stats().segments == 0
    assert cache.restore(session, ids) == 0 and session.n_tokens == 0


def test_a_boundary_is_a_place_to_go_on_from(open_model: Open) -> None:
    cache, session = PrefixCache(1 << 30), _engine.Session(open_model(512))
    system = random_ids(140, VOCAB)
    prompts = [np.concatenate([system, random_ids(50, VOCAB, seed)]) for seed in (1, 2, 3)]
    assert warm(session, cache, prompts[0], [140], 1, 0).reused == 0
    assert warm(session, cache, prompts[1], [140], 1, 0).reused == 128
    assert warm(session, cache, prompts[2], [], 1, 0).reused == 0  # a cold run of it would not stop there


@pytest.mark.slow  # 3 s: tests/host/test_prefix_cache.py does so every day
def test_prompts_that_part(open_model: Open) -> None:
    """The two newest append ends are after the shared part: the second prompt keeps a state at the last shared end."""
    engine = open_model(64)
    cache, shared, found = PrefixCache(1 << 30), random_ids(150, VOCAB), []
    for seed in (1, 2, 3):
        prompt = np.concatenate([shared, random_ids(140, VOCAB, seed)])
        got = warm(_engine.Session(engine), cache, prompt, [], 1, 0)
        check(got, cold(_engine.Session(engine), prompt, [], 1, 0), seed)
        found.append(got.reused)
    assert found == [0, 0 if state_bytes(_engine.Session(engine)) else 128, 128]


@pytest.mark.slow  # 7 s each
def test_prompts_longer_than_the_budget(open_model: Open) -> None:
    """Pages in the KV cache take no main memory, so a budget for two states is enough for any prompt."""
    engine = open_model(64)
    session = _engine.Session(engine)
    cache = PrefixCache(2 * max(state_bytes(session), session.page_bytes), engine=engine)
    ids = random_ids(700, VOCAB)
    for n in range(100, 700, 100):
        got = warm(session, cache, ids[:n], [n // 64 * 64], 1, 0)
        check(got, cold(_engine.Session(engine), ids[:n], [n // 64 * 64], 1, 0), n)
        assert got.reused == (n - 100) // 64 * 64
        session = _engine.Session(engine)
    assert cache.stats().memory_bytes <= cache.stats().memory_budget_bytes
