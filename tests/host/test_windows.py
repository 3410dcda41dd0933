"""Layers with a window give back pages that the window has left: bits, rewinds, forks, swaps, pieces, and memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import feed, open_engine, random_ids
from lucebox import _engine
from lucebox.errors import InvalidRequestError, OutOfMemoryError
from reference.gguf_files import Shape, write_model
from tree_data import path_to, random_tree

PAGE = 64
CONTEXT = 16 * PAGE
SHAPE = Shape("gpt-oss", n_layers=4, window=70)
N_WINDOWS = 2  # layers
WINDOW_PAGES = 3  # that 70 rows can span
SEQUENCE_PAGES = WINDOW_PAGES + 1 + 3  # a page that a rewind needs, and 3 for rows ahead
VOCAB = SHAPE.vocab


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("windows") / "windows.gguf", SHAPE)


def tight(model: Path, sessions: int = 1, **options: Any) -> _engine.Engine:
    """So few pages for windows that every sequence soon gives pages back."""
    return open_engine(model, **{"context": CONTEXT, "prefill_chunk": PAGE, "sessions": sessions} | options)


def roomy(model: Path, **options: Any) -> _engine.Engine:
    """So many that a single sequence keeps all of its pages."""
    return tight(model, sessions=16, **options)


@pytest.mark.parametrize("kv", ["f32", "q8_0/wht4"])
@pytest.mark.parametrize("chunk", [1, 37, 64, 200])
def test_bits_over_many_windows(model: Path, kv: str, chunk: int) -> None:
    ids = random_ids(500 if chunk == 1 else CONTEXT, VOCAB)
    engines = (make(model, kv=kv, prefill_chunk=256) for make in (roomy, tight))
    want, got = (feed(_engine.Session(engine), ids, chunk) for engine in engines)
    assert np.array_equal(want, got)


def test_trees_and_rewinds(model: Path, seed: int) -> None:
    """In lockstep with a sequence that keeps all pages."""
    rng = np.random.default_rng(seed)
    plain, session = (_engine.Session(engine) for engine in (roomy(model), tight(model)))
    n_back = longest = 0
    for _ in range(60):
        if plain.n_tokens > CONTEXT - 140:
            break
        ids = random_ids(int(rng.integers(1, 65)), VOCAB, int(rng.integers(1 << 30)))
        parents, _ = random_tree(len(ids), rng)
        want, got = (each.append(ids, parents=parents.tolist())[0] for each in (plain, session))
        assert np.array_equal(want, got)
        path = path_to(parents, int(rng.integers(len(ids)))).tolist()
        for each in (plain, session):
            each.commit(path)
        want, got = (feed(each, ids) for each in (plain, session))
        assert np.array_equal(want, got)
        floor, n = session.rewind_floor, session.n_tokens
        longest = max(longest, n)
        assert plain.rewind_floor == 0 and floor <= max(longest - 64, 0)
        back = floor if n_back == 0 < floor else max(floor, n - int(rng.integers(20)))
        n_back += back == floor > 0
        for each in (plain, session):
            each.rewind(back)
    assert n_back > 0


def test_how_far_a_sequence_rewinds(model: Path) -> None:
    """As far as nobody else needs the pages."""
    engine = tight(model, sessions=2, kv_tokens=2 * CONTEXT)
    first, second = _engine.Session(engine), _engine.Session(engine)
    ids = random_ids(CONTEXT, VOCAB)
    first.sync(ids[:1000])
    assert first.rewind_floor == 0  # the 16 pages of two sessions hold all rows of one
    second.sync(random_ids(1000, VOCAB, 1))
    assert 0 < first.rewind_floor <= 1000 - 64
    floor = first.rewind_floor
    with pytest.raises(InvalidRequestError, match=f"rewind to {floor - 1} tokens: possible from {floor} to 1000"):
        first.rewind(floor - 1)
    first.rewind(floor)
    plain = _engine.Session(roomy(model))
    plain.sync(ids)
    first.sync(ids)
    assert np.array_equal(first.logits(), plain.logits())
    first.rewind(0)
    assert first.n_tokens == first.n_pages == first.rewind_floor == 0
    first.sync(ids)
    assert np.array_equal(first.logits(), plain.logits())
    first.sync(ids[:30])  # too far back: computed again
    plain.sync(ids[:30])
    assert np.array_equal(first.logits(), plain.logits())


def test_forks_and_swaps(model: Path) -> None:
    """Sequences that share pages, give them back at different times, and come back from the host."""
    engine, alone = tight(model, sessions=3), _engine.Session(roomy(model))
    source, fork, other = (_engine.Session(engine) for _ in range(3))
    ids, tails = random_ids(700, VOCAB), [random_ids(15 * PAGE - 700, VOCAB, i) for i in (1, 2)]
    source.sync(ids)
    fork.fork(source)
    for session, tail in ((source, tails[0]), (fork, tails[1])):
        other.sync(random_ids(900, VOCAB, 3))
        session.sync(np.concatenate([ids, tail[:150]]))
        session.swap_out()
        other.reset()
    for session, tail in ((fork, tails[1]), (source, tails[0])):
        text = np.concatenate([ids, tail])
        session.sync(text)
        alone.sync(text)
        assert np.array_equal(session.logits(), alone.logits())
        assert session.save() == alone.save()


@pytest.mark.parametrize("n", [1, 63, 64, 70, 134, 192, 700])
def test_snapshots_and_pieces(model: Path, n: int) -> None:
    """Both hold the window of the last token alone, whichever pages the sequence still has."""
    ids, ends = random_ids(n + 200, VOCAB), [*range(PAGE, n, PAGE), n]
    source, plain = _engine.Session(tight(model)), _engine.Session(roomy(model))
    source.sync(ids[:n])
    plain.sync(ids[:n])
    if n % PAGE == 0:  # the rows after the last token are what earlier tokens left in the page
        assert source.save() == plain.save()
        assert np.array_equal(source.read_windows(), plain.read_windows())
    loaded, assembled = _engine.Session(tight(model)), _engine.Session(tight(model))
    for session in (loaded, assembled):
        session.sync(random_ids(900, VOCAB, 1))  # something else before
    loaded.load(source.save())
    pages = source.read_pages(0, -(-n // PAGE))
    assembled.assemble(ids[:n], ends, 0, [pages], windows=source.read_windows())
    plain.sync(ids)
    for session in (loaded, assembled):
        session.sync(ids)
        assert np.array_equal(session.logits(), plain.logits())


def test_a_prefix_of_its_own(model: Path) -> None:
    """assemble() needs no pieces for it while its window is there."""
    session, plain = _engine.Session(tight(model)), _engine.Session(roomy(model))
    ids = random_ids(900, VOCAB)
    session.sync(ids)
    n = session.own_floor
    assert 0 < n == session.rewind_floor < 900 - 64
    with pytest.raises(InvalidRequestError, match="bytes of recurrent state; got 0, 0 and 0"):
        session.assemble(ids[: n - 1], [n - 1], -(-(n - 1) // PAGE))
    session.assemble(ids[:n], [n], -(-n // PAGE))
    more = np.concatenate([ids[:n], random_ids(100, VOCAB, 1)])
    session.sync(more)
    plain.sync(more)
    assert session.tokens == more.tolist() and np.array_equal(session.logits(), plain.logits())


def test_a_full_pool(model: Path) -> None:
    """More sequences than the plan counted on: the pages for windows end first, and nothing changes."""
    engine = tight(model, kv_tokens=4 * CONTEXT)
    first, second = _engine.Session(engine), _engine.Session(engine)
    ids = random_ids(600, VOCAB)
    first.sync(ids)
    with pytest.raises(OutOfMemoryError, match="beside those of other sequences"):
        second.sync(ids)
    n, n_free = second.n_tokens, engine.n_free_pages
    assert 0 < n < 600 and not second.reserve(n + PAGE) and engine.n_free_pages == n_free
    first.swap_out()
    second.sync(ids)
    first.sync(np.append(ids, np.int32(5)))  # the pages before the window of the other sequence suffice
    plain = _engine.Session(roomy(model))
    plain.sync(np.append(ids, np.int32(5)))
    assert np.array_equal(first.logits(), plain.logits())


def planned(engine: _engine.Engine) -> dict[str, int]:
    return {name: int(n_bytes) for name, n_bytes, *_ in engine.plan["entries"]}


def test_memory(model: Path) -> None:
    """Windows take pages per session and per chunk, and no more than the layers that keep all rows."""
    row = 2 * SHAPE.n_kv_heads * SHAPE.head_dim * 4
    layers = N_WINDOWS * PAGE * row
    for context in (CONTEXT, 4096):
        for sessions in (1, 2, 3):
            sizes = planned(tight(model, sessions, context=context, prefill_chunk=128))
            assert sizes["KV cache"] == (SHAPE.n_layers - N_WINDOWS) * sessions * context * row
            assert sizes["KV windows"] == layers * (sessions * SEQUENCE_PAGES + 2 * min(sessions, 2))
    assert planned(tight(model, context=3 * PAGE))["KV windows"] == 3 * layers


def test_a_context_comes_before_windows_of_more_sessions(model: Path) -> None:
    """They take what memory it leaves, and one session's windows always fit."""
    options = {"context": 4096, "kv_tokens": 4096}
    plan = tight(model, 4, **options).plan
    session = sum(n_bytes for _, n_bytes, _, per_session in plan["entries"] if per_session)
    all_four = plan["mapped_bytes"] + plan["total_bytes"] + 3 * session
    windows = N_WINDOWS * SEQUENCE_PAGES * PAGE * 2 * SHAPE.n_kv_heads * SHAPE.head_dim * 4
    found = [
        tight(model, 4, **options, memory_limit=all_four - n * (windows + session)).plan["window_sessions"]
        for n in range(4)
    ]
    assert found == [4, 3, 2, 1]
    assert open_engine(model, sessions=None, **options).plan["window_sessions"] == 4
