"""Prefix reuse in memory: what is reused, what is forgotten, and that no bit changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conversations import Conversation, check, cold, replay, warm
from engines import open_engine, random_ids
from lucebox import _engine
from lucebox.generation.prefix_cache import PrefixCache, state_bytes
from reference.gguf_files import Shape, write_model

SHAPES = {
    "hybrid": Shape(n_layers=3, recurrent=(True, False, True)),
    "attention": Shape("qwen3", n_layers=2),
    "windows": Shape("gpt-oss", n_layers=2, window=70),
}
VOCAB = SHAPES["hybrid"].vocab
FAST = {"activations": "int8", "kv": "f16", "context": 2048}
BIG = 1 << 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("prefix_cache")
    for name, shape in SHAPES.items():
        write_model(made / f"{name}.gguf", shape)
    return made


@pytest.fixture(params=SHAPES)
def model(request: pytest.FixtureRequest, folder: Path) -> Path:
    return folder / f"{request.param}.gguf"


def talk(seed: int, longest_turn: int = 60, context: int = 2048) -> Conversation:
    return Conversation(VOCAB, np.random.default_rng(seed), longest_turn, context)


def folds(model: Path) -> bool:
    """Whether a session of the model goes on from stored states alone."""
    return model.stem == "hybrid"


# --- bits


@pytest.mark.first_case
@pytest.mark.parametrize("chunk", [64, 512])
def test_a_hundred_turns_have_the_bits_of_cold_runs(model: Path, chunk: int) -> None:
    engine = open_engine(model, prefill_chunk=chunk, **FAST)
    cache = PrefixCache(BIG)
    reused = list(replay(engine, cache, talk(chunk, 24), 100, n_answer=3, cold_every=4))
    assert max(reused[50:]) > 8 * max(reused[:10])  # hits grow with the conversation
    stats = cache.stats()
    assert stats.lookups == 100 and stats.hits > 90 and stats.reused_tokens == sum(reused)


@pytest.mark.parametrize("kv", ["q8_0", "q5_1/wht3", "tq3_0/fp8"])
def test_every_type_of_keys_and_values(model: Path, kv: str) -> None:
    """Reused pages have the bits of cold runs, and the cache counts their bytes."""
    narrow, wide = (open_engine(model, **FAST | {"kv": one}) for one in (kv, "f16"))
    caches = PrefixCache(BIG), PrefixCache(BIG)
    reused = [
        list(replay(engine, cache, talk(5, 40), 10)) for engine, cache in zip((narrow, wide), caches, strict=True)
    ]
    assert reused[0] == reused[1] and max(reused[0]) > 128
    assert 0 < caches[0].stats().memory_bytes < caches[1].stats().memory_bytes


def test_pages_that_are_shared_in_place_of_copied(model: Path) -> None:
    """Results equal those restored from bytes, whether a session shares the pages or they were dropped."""
    engine = open_engine(model, prefill_chunk=64, **FAST, sessions=2)
    cache, ids = PrefixCache(BIG, engine=engine), random_ids(400, VOCAB)
    first, second = _engine.Session(engine), _engine.Session(engine)
    list(cache.prefill(first, ids))
    expected, n_prefix = first.logits(), 6  # 384 tokens
    used = engine.n_pages - engine.n_free_pages
    assert used == first.n_pages == 7
    assert cache.stats().memory_bytes == 2 * first.recurrent_bytes, "no page is copied yet"
    for n_shared in (n_prefix, 0):
        assert next(cache.prefill(second, ids)) == 384
        assert engine.n_pages - engine.n_free_pages == (used if n_shared else n_prefix)
        second.sync(ids)
        assert np.array_equal(second.logits(), expected)
        second.reset()
        assert not cache.drop_pages() if n_shared else True, "the first session holds the pages too"
        first.reset()
        while cache.drop_pages():
            pass
    assert cache.stats().memory_bytes == n_prefix * first.page_bytes + 2 * state_bytes(first)
    assert engine.n_free_pages == engine.n_pages


@pytest.mark.first_case
@pytest.mark.parametrize("chunk", [1, 48, 100])
def test_chunks_that_are_not_pages(model: Path, chunk: int) -> None:
    engine = open_engine(model, prefill_chunk=chunk, **FAST)
    assert max(replay(engine, PrefixCache(BIG), talk(chunk, 80, 600), 12)) > 128


@pytest.mark.first_case
def test_a_small_budget_changes_nothing_but_speed(model: Path) -> None:
    engine = open_engine(model, prefill_chunk=128, **FAST)
    session = _engine.Session(engine)
    cache = PrefixCache(12 * session.page_bytes + 3 * state_bytes(session))
    two = [talk(1, 40, 700), talk(2, 90, 700)]
    reused = [n for one in two * 2 for n in replay(engine, cache, one, 12)]
    stats = cache.stats()
    assert max(reused) > 128 and stats.evicted > 8 and stats.damaged == 0
    assert stats.memory_bytes <= stats.memory_budget_bytes


def test_no_budget_keeps_nothing(model: Path) -> None:
    engine = open_engine(model, prefill_chunk=64, **FAST)
    cache = PrefixCache(0)
    reused = list(replay(engine, cache, talk(3), 5))
    assert cache.stats().segments == 0 and cache.stats().memory_bytes == 0
    assert reused[0] == 0  # attention layers may still go on from what the session holds


def test_every_instruction_set(folder: Path, isa: str) -> None:
    engine = open_engine(folder / "hybrid.gguf", prefill_chunk=64, isa=isa, **FAST)
    assert max(replay(engine, PrefixCache(BIG), talk(4), 6)) > 64


# --- what is reused


def test_another_session_goes_on_from_the_same_prefix(model: Path) -> None:
    engine = open_engine(model, prefill_chunk=64, **FAST)
    cache, ids = PrefixCache(BIG), random_ids(300, VOCAB)
    fork = ids.copy()
    fork[200:] = random_ids(100, VOCAB, seed=9)
    sessions = [_engine.Session(engine) for _ in range(4)]
    assert warm(sessions[0], cache, ids, [], 2, 0).reused == 0
    for what, session, prompt, reused, in_session in (  # in_session: without recurrent layers, from the session's own
        ("same prompt", sessions[1], ids, 256, 256),
        ("same prompt, same session", sessions[0], ids, 256, 299),
        ("shorter", sessions[1], ids[:256], 192, 255),
        ("fork", sessions[1], fork, 192, 200),
        ("fork elsewhere", sessions[2], fork, 256, 256),
        ("nothing in common", sessions[2], fork[1:], 0, 0),
    ):
        got = warm(session, cache, prompt, [], 2, 0)
        check(got, cold(sessions[3], prompt, [], 2, 0), what)
        assert got.reused == (reused if folds(model) else in_session), what


def test_a_boundary_is_a_place_to_go_on_from(model: Path) -> None:
    engine = open_engine(model, prefill_chunk=512, **FAST)
    cache, session = PrefixCache(BIG), _engine.Session(engine)
    system = random_ids(333, VOCAB)
    prompts = [np.concatenate([system, random_ids(50, VOCAB, seed)]) for seed in (1, 2, 3)]
    assert warm(session, cache, prompts[0], [333], 1, 0).reused == 0
    in_session = 0 if folds(model) else 333  # attention goes on from any token of its own
    assert warm(session, cache, prompts[1], [333], 1, 0).reused == max(in_session, 320)
    other = _engine.Session(engine)
    got = warm(other, cache, prompts[2], [], 1, 0)  # a cold run of it does not stop at 320, which changes no bit
    check(got, cold(session, prompts[2], [], 1, 0), "without a boundary")
    assert got.reused == 320


@pytest.mark.first_case
@pytest.mark.parametrize("chunk, reused", [(64, 448), (256, 448), (512, 448)])
def test_prompts_that_part(model: Path, chunk: int, reused: int) -> None:
    """The two newest append ends are after the shared part: the second prompt keeps a state where it leaves the first,
    at the start of a page. Others go on from there, and bits stay."""
    engine = open_engine(model, prefill_chunk=chunk, **FAST)
    cache, shared = PrefixCache(BIG), random_ids(500, VOCAB)
    found = []
    for seed in (1, 2, 3, 4):
        prompt = np.concatenate([shared, random_ids(700, VOCAB, seed)])
        got = warm(_engine.Session(engine), cache, prompt, [], 2, 0)
        check(got, cold(_engine.Session(engine), prompt, [], 2, 0), seed)
        found.append(got.reused)
    has_state = state_bytes(_engine.Session(engine)) > 0
    assert found == [0, 0 if has_state else 500 // chunk * chunk, reused, reused]
    n_segments = cache.stats().segments
    earlier = np.concatenate([shared[:300], random_ids(900, VOCAB, 5)])
    for expected in (0 if has_state else 300 // chunk * chunk, 256, 256):
        got = warm(_engine.Session(engine), cache, earlier, [], 2, 0)
        check(got, cold(_engine.Session(engine), earlier, [], 2, 0), "earlier")
        assert got.reused >= expected
        earlier[300:] = random_ids(900, VOCAB, cache.stats().lookups)
    assert cache.stats().segments > n_segments


def test_generated_tokens_are_reused(model: Path) -> None:
    """They have the bits that they have in a prompt."""
    engine = open_engine(model, prefill_chunk=64, **FAST)
    cache, session = PrefixCache(BIG), _engine.Session(engine)
    prompt = random_ids(130, VOCAB)
    answer = warm(session, cache, prompt, [], 70, 0)
    cache.store(session, np.array(session.tokens, np.int32))
    longer = np.concatenate([prompt, np.array(answer.ids, np.int32), prompt[:5]])
    elsewhere = 128 if state_bytes(session) else 192  # no state was read at 192, as the session went on from 199
    for one, reused in ((session, 199), (_engine.Session(engine), elsewhere)):
        got = warm(one, cache, longer, [], 2, 1)
        check(got, cold(_engine.Session(engine), longer, [], 2, 1), "longer")
        assert got.reused == reused
    assert cache.restore(session, longer[:150]) == (128 if folds(model) else 149)


def test_positions_that_are_not_text_are_not_kept(model: Path) -> None:
    engine = open_engine(model, prefill_chunk=64, **FAST)
    cache, session = PrefixCache(BIG), _engine.Session(engine)
    ids = random_ids(200, VOCAB)
    session.sync(ids[:50])
    session.append(ids[50:100], positions=np.tile(np.arange(60, 110, dtype=np.int32), (3, 1)))
    session.commit(list(range(50)))
    session.sync(ids[:192])
    assert session.matched_prefix(ids, [200]) == 50
    cache.store(session, ids)
    assert cache.stats().segments == 0
    assert cache.restore(session, ids) == (0 if folds(model) else 50)
    snapshot = session.save()
    session.load(snapshot)
    assert session.matched_prefix(ids, [200]) == 0  # a snapshot does not tell


def test_restore_leaves_nothing_else_in_the_session(model: Path) -> None:
    engine = open_engine(model, prefill_chunk=64, **FAST)
    cache, session = PrefixCache(BIG), _engine.Session(engine)
    ids = random_ids(200, VOCAB)
    warm(session, cache, ids, [], 5, 0)
    has_state = folds(model)  # else all tokens but the last stay
    assert cache.restore(session, ids[:150]) == session.n_tokens == (128 if has_state else 149)
    assert cache.restore(session, ids[:64]) == session.n_tokens == (0 if has_state else 63)
    assert cache.restore(session, ids[:0]) == 0


def test_a_prefill_may_stop_at_any_append(model: Path) -> None:
    engine = open_engine(model, prefill_chunk=64, **FAST)
    cache, ids = PrefixCache(BIG), random_ids(400, VOCAB)
    steps = cache.prefill(_engine.Session(engine), ids)
    assert [next(steps) for _ in range(4)] == [0, 64, 128, 192]
    steps.close()
    session = _engine.Session(engine)
    assert warm(session, cache, ids, [], 1, 0).reused == (0 if state_bytes(session) else 192)


def test_every_token_counts(model: Path) -> None:
    """Prompts that differ in one token share only the prefix before it."""
    engine = open_engine(model, prefill_chunk=64, **FAST)
    cache, ids = PrefixCache(BIG), random_ids(257, VOCAB)
    for n in (129, 257):
        warm(_engine.Session(engine), cache, ids[:n], [], 1, 0)
    for at in range(0, 256, 17):
        other = ids.copy()
        other[at] ^= 1
        assert cache.restore(_engine.Session(engine), other) == at // 64 * 64
