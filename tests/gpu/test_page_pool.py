"""The shared KV cache of a device: steps run ahead of the host, over pages that come late, move or are copied."""

from __future__ import annotations

from pathlib import Path

import gpu_packs
import numpy as np
import pytest
from build_sim import build_sim
from engines import Decoder, open_engine
from lucebox import _engine
from lucebox.errors import OutOfMemoryError
from reference.gguf_files import Shape, write_model

VOCAB = 96
SHAPE = Shape(
    "qwen35", n_layers=2, recurrent=(True, False), d_state=64, n_v_heads=2, vocab=VOCAB, n_heads=2, n_kv_heads=1,
    head_dim=64, n_mtp=1,
)  # fmt: skip
PROMPT = [7 * i % 61 for i in range(60)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("pool") / "model.gguf", SHAPE)


@pytest.fixture(params=["graph", "megakernel", pytest.param("mtp", marks=pytest.mark.slow)])
def engine(pack: _engine.gpu.Pack, model: Path, request: pytest.FixtureRequest) -> _engine.Engine:
    draft, path = ("mtp", "graph") if request.param == "mtp" else ("none", request.param)
    return open_engine(model, pack=pack, draft=draft, decode_path=path, context=192, kv_tokens=256, kv="f16")


def n_used(engine: _engine.Engine) -> int:
    return engine.n_pages - engine.n_free_pages


@pytest.mark.first_case
def test_pages_that_come_late(engine: _engine.Engine) -> None:
    """With no pages to reach ahead, a step waits for the one before it, takes a page that is free by then, and goes
    on. Where none is, the row after it is an error, until one is."""
    other, decoder = _engine.Session(engine), Decoder(engine, PROMPT)
    expected = decoder.decode(10)
    for n_free in (0, 1):
        decoder.session.reset()
        assert n_used(engine) == 0
        other.sync(np.array(PROMPT * 3, np.int32))  # 180 tokens: 3 of the 4 pages
        decoder.start(PROMPT)
        assert engine.n_free_pages == 0
        made = decoder.decode(2)  # 62 tokens
        if n_free == 0:
            with pytest.raises(OutOfMemoryError, match="the KV cache of 256 tokens is full"):
                decoder.decode(10)
            made = decoder.ids[len(PROMPT) :]
        other.reset()
        decoder.sync()
        assert made + decoder.decode(10 - len(made)) == expected


@pytest.mark.first_case
def test_fork_while_steps_run_ahead(engine: _engine.Engine) -> None:
    """Source and fork both continue after a step in flight; the source writes into a copy of the last page."""
    source = Decoder(engine, PROMPT)
    expected = source.decode(12)
    source.start(PROMPT)
    assert source.decode(3) == expected[:3]
    source.choose()  # the next step has begun
    fork = Decoder(engine, [1, 2, 3])
    fork.ids, fork.sampler = list(source.ids), _engine.Sampler(VOCAB)
    fork.session.fork(source.session)
    assert fork.session.tokens == source.ids and fork.session.n_pages == 1
    source.sync()
    assert source.decode(9) == expected[3:]
    source.session.reset()
    fork.sync()
    assert fork.decode(9) == expected[3:]
    fork.session.reset()
    assert n_used(engine) == 0


@pytest.mark.first_case
def test_swapped_out_between_steps(engine: _engine.Engine) -> None:
    decoder, other = Decoder(engine, PROMPT), _engine.Session(engine)
    expected = decoder.decode(12)
    decoder.start(PROMPT)
    assert decoder.decode(3) == expected[:3]
    decoder.session.swap_out()
    other.sync(np.array([5] * 64, np.int32))  # takes the page that it had
    assert decoder.session.reserve(len(decoder.ids))
    assert decoder.decode(9) == expected[3:]


def test_page_runs(engine: _engine.Engine) -> None:
    decoder, other = Decoder(engine, PROMPT + PROMPT[:4]), _engine.Session(engine)
    run, state = decoder.session.share_pages(0, 1), decoder.session.read_recurrent()
    ids = np.array(decoder.ids, np.int32)
    expected = decoder.decode(5)
    decoder.session.reset()
    other.assemble(ids, [64], 0, [run], state)
    decoder.session, decoder.ids = other, [*ids.tolist(), expected[0]]
    decoder.sampler = _engine.Sampler(VOCAB)
    decoder.sync()
    assert decoder.decode(4) == expected[1:]


def test_copies_of_states_take_free_memory_again(engine: _engine.Engine) -> None:
    decoder = Decoder(engine, PROMPT)
    first, second = decoder.session.read_recurrent(), decoder.session.read_recurrent()
    address, kept = first.ctypes.data, second.copy()
    assert np.array_equal(first, second) and second.ctypes.data != address
    del first
    decoder.decode(2)
    third = decoder.session.read_recurrent()
    assert third.ctypes.data == address and not np.array_equal(third, kept)
    assert np.array_equal(second, kept)


def test_states_in_memory_that_is_not_pinned(model: Path) -> None:
    folder = build_sim()
    refusing = gpu_packs.load(folder, gpu_packs.manifest_of(folder), index=6)
    engine = open_engine(model, pack=refusing, kv="f16")
    decoder, other = Decoder(engine, PROMPT + PROMPT[:4]), _engine.Session(engine)
    expected = decoder.session.read_recurrent()
    copies = [decoder.session.read_recurrent() for _ in range((10 << 20) // expected.nbytes + 1)]
    assert all(np.array_equal(expected, copy) for copy in copies)
    run, ids = decoder.session.share_pages(0, 1), np.array(decoder.ids, np.int32)
    other.assemble(ids, [64], 0, [run], copies[-1])
    assert np.array_equal(other.read_recurrent(), expected)
