"""Timelines in pieces: KV pages and recurrent state read from one session and put together in another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engines import feed, open_engine, random_ids
from lucebox import _engine
from lucebox.errors import InvalidRequestError
from numpy.typing import NDArray
from reference.gguf_files import Shape, write_model

SHAPES = {
    "hybrid": Shape(n_layers=3, recurrent=(True, False, True)),
    "attention": Shape("qwen3", n_layers=2),
    "windows": Shape("gpt-oss", n_layers=2, window=70),
}
IDS = random_ids(200, SHAPES["hybrid"].vocab)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pieces")
    for name, shape in SHAPES.items():
        write_model(made / f"{name}.gguf", shape)
    return made


@pytest.fixture(params=SHAPES)
def engine(request: pytest.FixtureRequest, folder: Path) -> _engine.Engine:
    return open_engine(folder / f"{request.param}.gguf")


@pytest.fixture(params=SHAPES)
def sparse_engine(request: pytest.FixtureRequest, folder: Path) -> _engine.Engine:
    """A row's bits depend on its append, as on a GPU: a prefix ends where an append ended."""
    return open_engine(folder / f"{request.param}.gguf", sparse_prefill=1e-6)


def at(engine: _engine.Engine, *ends: int) -> _engine.Session:
    session = _engine.Session(engine)
    for end in ends:
        session.sync(IDS[:end])
    return session


def after(session: _engine.Session, *ends: int) -> NDArray[np.float32]:
    """Logits at the end of IDS."""
    for end in (*ends, len(IDS)):
        session.sync(IDS[:end])
    return session.logits()


def state_of(session: _engine.Session) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    return session.read_recurrent(), session.read_windows()


# --- held: what a timeline was computed in


@pytest.mark.parametrize(
    ("ends", "want"),
    [
        ([64, 100, 128, 164], 164),  # chunks end at multiples of 64
        ([64, 100, 128, 164, 192], 164),
        ([64, 100, 128], 128),
        ([64, 100], 100),
        ([64, 128], 64),
        ([32, 64], 0),
        ([], 0),
    ],
)
def test_held_knows_the_appends(sparse_engine: _engine.Engine, ends: list[int], want: int) -> None:
    assert at(sparse_engine, 100, 164).matched_prefix(IDS, ends) == want


def test_any_append_holds_where_rows_are_invariant(engine: _engine.Engine) -> None:
    session = at(engine, 100, 164)
    other = IDS.copy()
    other[120] ^= 1
    for ends in ([], [64, 128], [164]):
        assert session.matched_prefix(IDS, ends) == 164
        assert session.matched_prefix(other, ends) == 120


def test_held_compares_tokens(sparse_engine: _engine.Engine) -> None:
    session = at(sparse_engine, 100, 164)
    other = IDS.copy()
    other[120] ^= 1
    assert session.matched_prefix(other, [64, 100, 128, 164]) == 100
    assert session.matched_prefix(IDS[:99], [64, 100]) == 64


def test_held_ends_where_rows_were_dropped(sparse_engine: _engine.Engine) -> None:
    session = at(sparse_engine, 64)
    session.append(IDS[64:80])
    session.commit(list(range(10)))
    session.append(IDS[74:90])
    session.commit(list(range(16)))
    assert session.n_tokens == 90 and session.matched_prefix(IDS, [64, 74, 90]) == 64
    session.rewind(80)
    assert session.matched_prefix(IDS, [64, 80]) == 64


def test_held_ends_at_other_positions(engine: _engine.Engine) -> None:
    session = at(engine, 64)
    session.append(IDS[64:66], positions=np.full((3, 2), 7, np.int32))
    session.commit([0, 1])
    assert session.matched_prefix(IDS, [64, 66]) == 64


def test_held_counts_committed_appends_and_steps(engine: _engine.Engine) -> None:
    session = _engine.Session(engine)
    feed(session, IDS[:70], 35)
    session.sync(IDS[:71])
    assert session.matched_prefix(IDS, [35, 70, 71]) == 71


def test_held_is_empty_after_load(engine: _engine.Engine) -> None:
    session, other = at(engine, 64), _engine.Session(engine)
    other.load(session.save())
    assert other.n_tokens == 64 and other.matched_prefix(IDS, [64]) == 0


# --- pieces


@pytest.mark.parametrize("n", [1, 63, 64, 65, 128, 130])
def test_a_timeline_in_pieces_has_the_same_bits(engine: _engine.Engine, n: int) -> None:
    ends = [end for end in (64, 128) if end < n] + [n]
    first = at(engine, *ends)
    n_pages = -(-n // 64)
    pages = [first.read_pages(page, 1) for page in range(n_pages - 1)] + [first.read_pages(n_pages - 1, 1)]
    second = at(engine, 200)  # something else before
    second.assemble(IDS[:n], ends, 0, pages, *state_of(first))
    assert second.tokens == IDS[:n].tolist() and second.matched_prefix(IDS, ends) == n
    want = after(at(engine, *ends))
    assert np.array_equal(after(second), want)
    assert np.array_equal(after(first), want)  # reading changed nothing


def test_held_pages_need_not_be_given(engine: _engine.Engine) -> None:
    session = at(engine, 64, 128, 192)
    tail, state = session.read_pages(1, 1), state_of(at(engine, 64, 128))
    session.assemble(IDS[:128], [64, 128], 1, [tail], *state)
    assert np.array_equal(after(session, 150), after(at(engine, 64, 128), 150))
    session.assemble(IDS[:128], [64, 128], 2, [], *state)
    assert np.array_equal(after(session, 150), after(at(engine, 64, 128), 150))


def test_several_pages_are_one_piece(engine: _engine.Engine) -> None:
    session = at(engine, 64, 128)
    one, two = session.read_pages(0, 1), session.read_pages(1, 1)
    both = session.read_pages(0, 2)
    assert both.size == 2 * session.page_bytes == one.size + two.size
    other = _engine.Session(engine)
    other.assemble(IDS[:128], [64, 128], 0, [both], *state_of(session))
    assert np.array_equal(other.read_pages(0, 1), one) and np.array_equal(other.read_pages(1, 1), two)


def test_refusals(engine: _engine.Engine) -> None:
    session = at(engine, 64, 128)
    page, state = session.read_pages(0, 1), state_of(session)
    empty = _engine.Session(engine)
    for what, arguments in {
        "last one must be 64": (IDS[:64], [32], 0, [page], *state),
        "must ascend": (IDS[:64], [40, 40, 64], 0, [page], *state),
        "holds 0 of these tokens, so pages from page 1": (IDS[:128], [64, 128], 1, [page], *state),
        "must be whole pages": (IDS[:64], [64], 0, [page[:-1].copy()], *state),
        "need 2 pages": (IDS[:128], [64, 128], 0, [page], *state),
        "the vocabulary has": (np.full(64, 1 << 20, np.int32), [64], 0, [page], *state),
    }.items():
        with pytest.raises(InvalidRequestError, match=what):
            empty.assemble(*arguments)
        assert empty.n_tokens == 0
    with pytest.raises(InvalidRequestError, match="recurrent state; got"):
        empty.assemble(IDS[:64], [64], 0, [page], np.zeros(3, np.uint8))
    with pytest.raises(InvalidRequestError, match="beyond the 128 tokens of the timeline"):
        session.read_pages(1, 2)
    with pytest.raises(InvalidRequestError, match="at least one page"):
        session.read_pages(0, 0)
    session.append(IDS[128:130])
    with pytest.raises(InvalidRequestError, match="is not committed yet"):
        session.read_recurrent()
