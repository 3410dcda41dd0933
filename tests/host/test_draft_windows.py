"""Layers of draft models that keep a window, beside a target with recurrent layers: drafts over many windows, rewinds,
snapshots, pieces, and memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draft_pairs import FIRST, TARGET, Pair, reference_of
from engines import open_engine, random_ids
from lucebox import _engine, _kernels
from reference import draft_files, gguf_files
from reference.draft_files import DraftShape
from reference.gguf_files import Shape

CONTEXT = 1024
CHUNK = 128
WINDOW = 2 + 1 + 3 + 2  # pages: the window of 10, 64 rows that a rewind takes back, rows ahead, and a chunk
N_SLIDING = sum(FIRST.sliding)


LONG = replace(FIRST, block=64)  # the longest block


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draft_files.write_gguf(tmp_path_factory.mktemp("ring") / "draft.gguf", FIRST)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_files.write_model(tmp_path_factory.mktemp("ring") / "target.gguf", TARGET)


def pair_of(target: Path, draft: Path, shape: DraftShape = FIRST) -> Pair:
    return Pair(target, str(draft), reference_of(shape), context=CONTEXT, sessions=1)


def rewind(pair: Pair, n_tokens: int) -> None:
    pair.drafting.rewind(n_tokens)
    for rows in (pair.reference.keys, pair.reference.values):
        rows[:] = [layer[:n_tokens] for layer in rows]
    del pair.ids[n_tokens:]


def test_drafts_over_many_windows(target: Path, tmp_path: Path) -> None:
    """Chains longer than a chunk, trees, and rewinds as far as the recurrent layers allow, until every page of the
    windows is used again."""
    pair = pair_of(target, draft_files.write_gguf(tmp_path / "draft.gguf", LONG), LONG)
    rng = np.random.default_rng(0)
    while len(pair.ids) < 600:
        for rows, n_kept in ((CHUNK, CHUNK), (-64, 0), (64, 3), (1, 1), (-40, 0)):
            pair.step(rows, n_kept, rng)
        pair.check(root=5)
        pair.step(64, 64, rng)
        pair.drafting.propose(5, pair.drafting.max_depth)  # writes after the rows that the rewind drops
        rewind(pair, len(pair.ids) - 64)
        pair.check(root=5)


@pytest.mark.parametrize("n", [7, 64, 130, 450])
def test_snapshot(target: Path, draft: Path, n: int) -> None:
    """The window's rows are in it, also for a session that keeps more or fewer pages."""
    pair, rng = pair_of(target, draft), np.random.default_rng(0)
    for at in range(0, n, CHUNK):
        pair.step(min(CHUNK, n - at), min(CHUNK, n - at), rng)
    want, saved = pair.drafting.propose(5, pair.drafting.max_depth), pair.drafting.save()
    for options in ({"prefill_chunk": CHUNK}, {"prefill_chunk": 512, "context": 512}):
        other = _kernels.Drafting(open_engine(target, draft=str(draft), **{"context": CONTEXT} | options))
        other.load(saved)
        for a, b in zip(want, other.propose(5, other.max_depth), strict=True):
            assert np.array_equal(a, b)


@pytest.mark.parametrize("n", [40, 192, 450])
def test_pieces(target: Path, draft: Path, n: int) -> None:
    """Pages and recurrent state of one timeline make another that drafts the same, bit by bit."""
    engine = open_engine(target, draft=str(draft), context=CONTEXT, prefill_chunk=CHUNK)
    ids = random_ids(CONTEXT, TARGET.vocab)
    first, second = _engine.Session(engine), _engine.Session(engine)
    first.sync(ids[:n])
    second.sync(ids[-500:])  # something else before
    ends = [*range(CHUNK, n, CHUNK), n]
    pages = first.read_pages(0, -(-n // 64))
    second.assemble(ids[:n], ends, 0, [pages], first.read_recurrent(), first.read_windows())
    drafts = []
    for session in (first, second):
        drafting = _kernels.Drafting(engine)
        drafting.load(session.save())
        drafts.append(drafting.propose(5, drafting.max_depth))
    for a, b in zip(*drafts, strict=True):
        assert np.array_equal(a, b)


def kv_bytes(engine: _engine.Engine) -> dict[str, int]:
    """Bytes of the draft model in the plan of one session with a whole context, by entry."""
    entries = {name: int(n_bytes) for name, n_bytes, *_ in engine.plan["entries"]}
    return {name: entries.get(name, 0) for name in ("draft KV cache", "KV windows")}


def test_memory(target: Path, draft: Path, tmp_path: Path) -> None:
    """The windows do not grow with the context, whatever the target's layers are."""
    options: dict[str, Any] = {"draft": str(draft), "prefill_chunk": CHUNK, "kv": "f32"}
    row = 2 * FIRST.n_kv_heads * FIRST.head_dim * 4
    n_full = len(FIRST.sliding) - N_SLIDING
    attention = gguf_files.write_model(tmp_path / "attention.gguf", Shape("qwen3", n_layers=4, tied=True))
    for path in (target, attention):
        for context in (CONTEXT, 4096):
            planned = kv_bytes(open_engine(path, context=context, sessions=1, **options))
            assert planned == {
                "draft KV cache": n_full * context * row,
                "KV windows": N_SLIDING * WINDOW * 64 * row,
            }
    entries = open_engine(target, context=CONTEXT, sessions=1, **options).plan["entries"]
    details = {name: detail for name, _, detail, _ in entries}
    assert details["KV windows"] == f"{N_SLIDING} layers keep the newest tokens, {WINDOW * 64} of all sessions"
