"""Block-sparse attention of prompts: which appends it reaches, what it keeps exact, and how its cost is measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import open_engine, random_ids
from lucebox import LLM, EngineOptions, _engine
from lucebox.cli import main
from lucebox.errors import InvalidRequestError, UnsupportedError
from reference.gguf_files import Shape, write_model

CHUNK = 256


@pytest.fixture(scope="module", params=["hybrid", "attention"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    shapes = {
        "hybrid": Shape(n_layers=4, recurrent=(True, False, True, False)),
        "attention": Shape("qwen3", n_layers=3),
    }
    return write_model(tmp_path_factory.mktemp("sparse") / f"{request.param}.gguf", shapes[request.param])


def logits_after(model: Path, n_tokens: int, share: float, parts: tuple[int, ...] = (), **options: Any) -> np.ndarray:
    """The logits after a prompt, which is computed up to each of `parts` first."""
    engine = open_engine(model, context=2048, prefill_chunk=CHUNK, sparse_prefill=share, **options)
    session, ids = _engine.Session(engine), random_ids(n_tokens, engine.info["vocab"], 3)
    for end in (*parts, n_tokens):
        session.sync(ids[:end])
    return session.logits()


def test_all_blocks_are_dense_attention(model: Path) -> None:
    """Every block has a millionth of the largest weight."""
    dense = logits_after(model, 1999, 0)
    assert np.array_equal(logits_after(model, 1999, 1e-6), dense)
    assert np.abs(logits_after(model, 1999, 1.0) - dense).max() > 1e-3


@pytest.mark.parametrize(("n_tokens", "parts"), [(CHUNK - 1, ()), (5 * CHUNK + 100, tuple(range(200, 1300, 200)))])
def test_what_ends_within_a_chunk_is_dense(model: Path, n_tokens: int, parts: tuple[int, ...]) -> None:
    """A short prompt, and one that grows by turns: what follows a turn up to the chunk's end is at most 64 rows."""
    parts = tuple(end for part in parts for end in (part, (part // CHUNK + 1) * CHUNK - 64))
    ends = tuple(sorted({end for end in parts if end < n_tokens}))
    assert np.array_equal(logits_after(model, n_tokens, 1.0, ends), logits_after(model, n_tokens, 0, ends))


def test_a_reused_prefix_has_the_bits_of_a_fresh_one(model: Path) -> None:
    """Also if the previous chunk was of another session, whose key means were in the same memory."""
    engine = open_engine(model, context=2048, prefill_chunk=CHUNK, sparse_prefill=0.7)
    vocab = engine.info["vocab"]
    ids, other = random_ids(1500, vocab, 3), random_ids(1500, vocab, 4)
    fresh = _engine.Session(engine)
    fresh.sync(ids)
    first, second = _engine.Session(engine), _engine.Session(engine)
    for end in range(CHUNK, 1500, CHUNK):
        first.sync(ids[:end])
        second.sync(other[:end])
    first.sync(ids)
    assert np.array_equal(first.logits(), fresh.logits())
    restored = _engine.Session(engine)
    first.sync(ids[: 4 * CHUNK])
    restored.load(first.save())
    restored.sync(ids)
    assert np.array_equal(restored.logits(), fresh.logits())


def test_a_snapshot_belongs_to_its_share(model: Path) -> None:
    engines = [open_engine(model, context=512, sparse_prefill=share) for share in (0, 0.5)]
    session = _engine.Session(engines[1])
    session.sync(random_ids(100, 50))
    with pytest.raises(UnsupportedError, match="other settings"):
        _engine.Session(engines[0]).load(session.save())


def test_the_plan_has_its_buffers() -> None:
    plans = []
    for share in (0, 0.5):
        with LLM("tiny-hybrid", context=4096, sparse_prefill=share, threads=1) as llm:
            plans.append(llm.memory_plan.total_bytes)
            assert llm.options.sparse_prefill == share
    assert plans[1] > plans[0]


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan"), "0.5", True])
def test_bad_shares(share: Any) -> None:
    for name in ("sparse_prefill", "prefill_sparse_alpha"):
        with pytest.raises(InvalidRequestError, match=f"^{name} must be a number from 0 to 1"):
            EngineOptions(**{name: share})


@pytest.mark.slow  # 2 s: tests/host/test_quality.py runs the command every day
def test_quality(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "sparse.csv"
    flags = ["--recall", "builtin", "--lengths", "1024", "--limit", "1", "--prefill-chunk", "128", "--csv", str(table)]
    assert main(["quality", "tiny-hybrid", *flags, "--sparse-prefill", "1e-6,1", "--json"]) == 0
    dense, all_blocks, few = json.loads(capsys.readouterr().out)["types"]
    assert [one["kv"] for one in (dense, all_blocks, few)] == ["f16", "f16 sparse 1e-06", "f16 sparse 1"]
    nll = [[cell["answer_nll"] for cell in one["recall"]] for one in (dense, all_blocks, few)]
    assert nll[1] == nll[0] and nll[2] != nll[0]
    assert "f16 sparse 1," in table.read_text()
    for wrong in (["--text", __file__], ["--recall", "builtin", "--text", __file__]):
        with pytest.raises(SystemExit):
            main(["quality", "tiny-hybrid", *wrong, "--sparse-prefill", "0.5"])
    assert "--sparse-prefill needs --recall" in capsys.readouterr().err
