"""Stored states refer to the pages of the windows: what they share, when the pages move to main memory, and bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conversations import check, cold, warm
from draft_pairs import FIRST, TARGET
from engines import open_engine, random_ids
from lucebox import _engine
from lucebox.generation.prefix_cache import PrefixCache
from prefix_walk import PrefixWalk
from reference.draft_files import write_gguf
from reference.gguf_files import Shape, metadata, tensors, write, write_model

PAGE = 64
CONTEXT = 16 * PAGE
SHAPES = {
    "windows": Shape("gpt-oss", n_layers=2, window=70),
    "only-windows": Shape("llama", n_layers=2),
    "hybrid-dflash": TARGET,
}
WINDOW_PAGES = 3  # of the first shape
BIG = 1 << 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("cached_windows")
    for name in ("windows", "hybrid-dflash"):
        write_model(made / f"{name}.gguf", SHAPES[name])
    shape = SHAPES["only-windows"]
    fields = {"general.architecture": "mistral3", "attention.sliding_window": 100}
    write(made / "only-windows.gguf", metadata(shape) | fields, tensors(shape))
    write_gguf(made / "first.gguf", FIRST)
    return made


def opened(folder: Path, sessions: int, name: str = "windows", **options: Any) -> _engine.Engine:
    """sessions: whose windows have pages; with 16, a sequence keeps all of its pages."""
    if name == "hybrid-dflash":
        options["draft"] = str(folder / "first.gguf")
    options = {"context": CONTEXT, "kv_tokens": 3 * CONTEXT, "prefill_chunk": PAGE, "kv": "f16"} | options
    return open_engine(folder / f"{name}.gguf", sessions=sessions, **options)


def test_states_share_pages(folder: Path) -> None:
    """A state costs the pages that neither the session nor another state has, and moves when they are needed."""
    engine = opened(folder, 4)
    session, cache = _engine.Session(engine), PrefixCache(BIG, engine=engine)
    n_pages, ids = engine.n_free_window_pages, random_ids(400, SHAPES["windows"].vocab)
    list(cache.prefill(session, ids))
    logits, memory = session.logits(), cache.stats().memory_bytes
    assert memory == 0
    session.reset()
    assert n_pages - engine.n_free_window_pages == WINDOW_PAGES + 1, "the states are at 320 and 384 tokens"
    other = _engine.Session(engine)
    assert cache.restore(other, ids) == 384
    assert n_pages - engine.n_free_window_pages == WINDOW_PAGES + 1
    other.sync(ids)
    assert np.array_equal(other.logits(), logits)
    assert not engine.lacks_window_pages
    other.reset()
    while cache.drop_pages():
        pass
    assert engine.n_free_window_pages == n_pages
    assert cache.stats().memory_bytes == 6 * session.page_bytes + 2 * session.window_bytes
    assert next(cache.prefill(other, ids)) == 384
    cache.close()


def test_the_windows_pages_move_first_where_they_are_short(folder: Path) -> None:
    """One session's windows: states leave the device as the session needs their pages; all other pages stay."""
    engine = opened(folder, 1)
    session, cache = _engine.Session(engine), PrefixCache(BIG, engine=engine)
    ids, earlier = (random_ids(n, SHAPES["windows"].vocab, n) for n in (CONTEXT - 30, 200))
    list(cache.prefill(session, earlier))
    session.reset()
    boundaries = list(range(PAGE, len(ids), PAGE))
    got = warm(session, cache, ids, boundaries, 8, 0)
    check(got, cold(_engine.Session(opened(folder, 16)), ids, boundaries, 8, 0), "cold")
    assert 0 < cache.stats().memory_bytes <= 4 * session.window_bytes
    session.reset()
    assert engine.n_pages - engine.n_free_pages == len(ids) // PAGE + len(earlier) // PAGE
    cache.close()


def test_files_have_the_windows(folder: Path, tmp_path: Path) -> None:
    """Of a device's cache, after a restart, and for a device with other pages."""
    ids, engines = random_ids(300, SHAPES["windows"].vocab), [opened(folder, n) for n in (1, 4)]
    want = cold(_engine.Session(opened(folder, 16)), ids, [], 3, 0)
    for engine, reused in zip(engines, (0, 256), strict=True):
        cache = PrefixCache(BIG, tmp_path, "model", engine=engine)
        got = warm(_engine.Session(engine), cache, ids, [], 3, 0)
        cache.close()
        check(got, want, reused)
        assert got.reused == reused
    (last, *_) = sorted(tmp_path.glob("*.windows"), key=lambda file: file.stat().st_size)[::-1]
    last.write_bytes(last.read_bytes()[:-1])
    cache = PrefixCache(BIG, tmp_path, "model", engine=engines[1])
    got = warm(_engine.Session(engines[1]), cache, ids, [], 3, 0)
    check(got, want, "damaged")
    assert got.reused < 256
    cache.close()


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("sessions", [1, pytest.param(2, marks=pytest.mark.slow)])  # 1 s
def test_a_walk(folder: Path, seed: int, name: str, sessions: int) -> None:
    rng = np.random.default_rng(seed)
    options = {"kv_tokens": CONTEXT + 5 * PAGE, "prefill_chunk": PAGE * int(rng.integers(1, 4))}
    engine, roomy = (opened(folder, n, name, **options) for n in (sessions, 16))
    walk = PrefixWalk(engine, roomy, SHAPES[name].vocab, rng)
    for n in range(400):
        if n >= 40 and walk.counts["reused"] > 0 and walk.counts["moved"] > 0:  # 40 steps do in 99 of 100 walks
            break
        walk.step(800, 6)
    walk.end()
    assert walk.counts["reused"] > 0 and walk.counts["moved"] > 0, (seed, options)
