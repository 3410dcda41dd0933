"""Append, commit, rewind: whatever a session was put through, it continues as one that took the straight way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engines import feed, largest_difference, logits_of, open_engine, path_to, random_ids
from lucebox import _engine
from lucebox.errors import InvalidRequestError
from reference.gguf_files import Shape, write_model
from tolerances import tolerance

EXACT = tolerance("logits", "f32")
RUN = 64  # rows that recurrent layers keep unfolded
HYBRID = Shape(n_layers=3, recurrent=(True, False, True))
ATTENTION = Shape("llama", n_layers=2)
VOCAB = HYBRID.vocab


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("state") / "hybrid.gguf", HYBRID)


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("state") / "attention.gguf", ATTENTION)


@pytest.fixture(params=["hybrid", "attention"])
def model(request: pytest.FixtureRequest) -> Path:
    path = request.getfixturevalue(str(request.param))
    assert isinstance(path, Path)
    return path


def random_parents(rows: int, rng: np.random.Generator) -> list[int]:
    """Mostly deep trees: a parent is one of the last few rows, or the committed sequence."""
    return [int(rng.integers(max(-1, i - 4), i)) for i in range(rows)]


def check_continues(session: _engine.Session, engine: _engine.Engine, n_more: int = 100) -> None:
    """Decodes further tokens one by one; each has the logits of a session that took all tokens from scratch."""
    past = session.tokens
    more = random_ids(n_more, VOCAB, seed=99)
    want = logits_of(engine, [*past, *more])[len(past) :]
    assert largest_difference(feed(session, more, chunk=1), want) < EXACT


# --- trees


@pytest.mark.parametrize("rows", [1, 2, 9, 23, 63, 64])
def test_tree_rows_equal_their_paths(model: Path, isa: str, rows: int) -> None:
    rng = np.random.default_rng(rows)
    engine = open_engine(model, isa=isa)
    session = _engine.Session(engine)
    prompt, ids, parents = random_ids(37, VOCAB), random_ids(rows, VOCAB, seed=1), random_parents(rows, rng)
    feed(session, prompt)
    logits, _ = session.append(ids, parents=parents)
    for row in sorted({0, rows - 1, *rng.integers(0, rows, 6).tolist()}):
        path = path_to(row, parents)
        want, _ = session.append(ids[path])  # the rows before were never committed
        assert largest_difference(logits[row], want[-1]) < EXACT, f"row {row}, path {path}"


def test_chain_equals_tree_with_one_path(model: Path, isa: str) -> None:
    session = _engine.Session(open_engine(model, isa=isa))
    feed(session, random_ids(20, VOCAB))
    ids = random_ids(30, VOCAB, seed=1)
    chain, _ = session.append(ids)
    tree, _ = session.append(ids, parents=list(range(-1, 29)))
    assert largest_difference(chain, tree) < EXACT


@pytest.mark.parametrize("seed", range(6))
def test_committed_path_continues(model: Path, isa: str, seed: int) -> None:
    """Several trees in a row, each committed along the path to a random row: contiguous, gapped, short, long."""
    rng = np.random.default_rng(seed)
    engine = open_engine(model, isa=isa)
    session = _engine.Session(engine)
    feed(session, random_ids(33, VOCAB))
    for step in range(3):
        rows = int(rng.integers(1, RUN + 1)) if step else RUN
        ids, parents = random_ids(rows, VOCAB, seed=10 * seed + step), random_parents(rows, rng)
        session.append(ids, parents=parents)
        path = path_to(int(rng.integers(0, rows)), parents)
        before = session.tokens
        session.commit(path)
        assert session.tokens == [*before, *ids[path].tolist()]
    check_continues(session, engine)


@pytest.mark.parametrize("path", [[], [0], [0, 1], [0, 2], [0, 2, 3], [0, 1, 4], [5]])
def test_commit_of_each_kind_of_path(model: Path, isa: str, path: list[int]) -> None:
    engine = open_engine(model, isa=isa)
    session = _engine.Session(engine)
    feed(session, random_ids(5, VOCAB))
    session.append(random_ids(6, VOCAB, seed=1), parents=[-1, 0, 0, 2, 1, -1])
    session.commit(path)
    check_continues(session, engine, 20)


def test_rejecting_everything_changes_nothing(model: Path, isa: str) -> None:
    """Bit for bit: the next append is the one that would have followed without the rejected ones."""
    engine = open_engine(model, isa=isa)
    plain, proposed = _engine.Session(engine), _engine.Session(engine)
    for session in (plain, proposed):
        feed(session, random_ids(30, VOCAB))
    rng = np.random.default_rng(0)
    for i in range(5):
        proposed.append(random_ids(40, VOCAB, seed=i), parents=random_parents(40, rng))
        if i % 2:
            proposed.commit([])
    more = random_ids(10, VOCAB, seed=7)
    assert np.array_equal(plain.append(more)[0], proposed.append(more)[0])


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ([0], "row 0 has parent 0"),
        ([-1, 1], "row 1 has parent 1"),
        ([-1, -2], "row 1 has parent -2"),
        ([-1], "parents"),
    ],
)
def test_bad_parents(hybrid: Path, parents: list[int], message: str) -> None:
    session = _engine.Session(open_engine(hybrid))
    ids = random_ids(1 if parents == [0] else 2, VOCAB)
    with pytest.raises(InvalidRequestError, match=message):
        session.append(ids, parents=parents)
    session.append(ids)


def test_tree_of_more_rows_than_a_run(hybrid: Path) -> None:
    session = _engine.Session(open_engine(hybrid, prefill_chunk=128))
    with pytest.raises(InvalidRequestError, match="at most 64 rows, got 65"):
        session.append(random_ids(65, VOCAB), parents=list(range(-1, 64)))


@pytest.mark.parametrize("path", [[1, 0], [0, 0], [5], [-1], [0, 1, 2, 3, 4, 5]])
def test_bad_paths(hybrid: Path, path: list[int]) -> None:
    engine = open_engine(hybrid)
    session = _engine.Session(engine)
    session.append(random_ids(5, VOCAB), parents=[-1, 0, 1, 2, 3])
    with pytest.raises(InvalidRequestError):
        session.commit(path)
    session.reset()
    check_continues(session, engine, 3)


def test_path_must_follow_the_parents(hybrid: Path) -> None:
    session = _engine.Session(open_engine(hybrid))
    session.append(random_ids(3, VOCAB), parents=[-1, 0, 0])
    with pytest.raises(InvalidRequestError, match="row 2 has parent 0; the path to commit reaches it from row 1"):
        session.commit([0, 1, 2])
    with pytest.raises(InvalidRequestError, match="row 1 has parent 0; the path to commit reaches it from row -1"):
        session.commit([1])
    session.commit([0, 2])  # still there


def test_commit_needs_an_append(hybrid: Path) -> None:
    session = _engine.Session(open_engine(hybrid))
    with pytest.raises(InvalidRequestError, match="no append to commit"):
        session.commit([0])
    data = session.save()
    for supersede in (
        lambda: session.commit([0]),
        lambda: session.rewind(0),
        lambda: session.sync(random_ids(9, VOCAB)),
        lambda: session.load(data),
        session.reset,
    ):
        session.reset()
        session.append(random_ids(3, VOCAB))
        supersede()
        with pytest.raises(InvalidRequestError, match="no append to commit"):
            session.commit([0])


# --- chains


@pytest.mark.parametrize("keep", [0, 1, 5, 29, 30])
def test_any_prefix_of_a_short_chain(model: Path, isa: str, keep: int) -> None:
    engine = open_engine(model, isa=isa)
    session = _engine.Session(engine)
    feed(session, random_ids(11, VOCAB))
    session.append(random_ids(30, VOCAB, seed=1))
    session.commit(list(range(keep)))
    check_continues(session, engine, 20)


@pytest.mark.parametrize("keep", [128, 129, 150])
def test_long_chain_keeps_prefixes_that_reach_the_last_run(hybrid: Path, isa: str, keep: int) -> None:
    engine = open_engine(hybrid, isa=isa, prefill_chunk=150)
    session = _engine.Session(engine)
    session.append(random_ids(150, VOCAB))
    session.commit(list(range(keep)))
    check_continues(session, engine, 20)


def test_long_chain_refuses_shorter_prefixes(hybrid: Path) -> None:
    session = _engine.Session(open_engine(hybrid, prefill_chunk=150))
    session.append(random_ids(150, VOCAB))
    with pytest.raises(InvalidRequestError, match="keeping 127 of 150 rows is not possible"):
        session.commit(list(range(127)))


def test_long_chain_of_attention_keeps_any_prefix(attention: Path) -> None:
    engine = open_engine(attention, prefill_chunk=150)
    session = _engine.Session(engine)
    session.append(random_ids(150, VOCAB))
    session.commit(list(range(3)))
    check_continues(session, engine, 20)


# --- rewind


@pytest.mark.first_case
def test_rewind_to_every_reachable_length(model: Path, isa: str) -> None:
    engine = open_engine(model, isa=isa)
    ids = random_ids(70 + 40, VOCAB)
    more = random_ids(3, VOCAB, seed=5)
    floor = None
    for length in range(110, -1, -1):
        session = _engine.Session(engine)
        feed(session, ids[:70])
        feed(session, ids[70:], chunk=40)
        floor = session.rewind_floor
        if length < floor:
            break
        session.rewind(length)
        assert session.tokens == ids[:length].tolist()
        if length % 8 in (0, 7) or length == floor:  # the costly part for a sample of them
            want = logits_of(engine, [*ids[:length], *more])[length:]
            assert largest_difference(session.append(more)[0], want) < EXACT, length
    assert floor == (70 if model.stem == "hybrid" else 0)


def test_rewind_of_a_gapped_path(hybrid: Path, isa: str) -> None:
    """The rows that stay are not neighbours in the append."""
    engine = open_engine(hybrid, isa=isa)
    for keep in range(4):
        session = _engine.Session(engine)
        feed(session, random_ids(9, VOCAB))
        session.append(random_ids(8, VOCAB, seed=1), parents=[-1, 0, 0, 2, 2, 4, 4, 6])
        session.commit([0, 2, 4, 6])
        session.rewind(9 + keep)
        check_continues(session, engine, 5)


def test_rewind_twice_and_back_and_forth(model: Path, isa: str) -> None:
    engine = open_engine(model, isa=isa)
    session = _engine.Session(engine)
    feed(session, random_ids(50, VOCAB))
    for seed in range(4):
        session.append(random_ids(20, VOCAB, seed=seed))
        session.commit(list(range(15)))
        session.rewind(session.n_tokens - 3)
        session.rewind(session.n_tokens - 4)
    check_continues(session, engine, 10)


def test_rewind_below_the_floor(hybrid: Path) -> None:
    engine = open_engine(hybrid)
    session = _engine.Session(engine)
    feed(session, random_ids(100, VOCAB), chunk=50)
    with pytest.raises(InvalidRequestError, match="rewind to 49 tokens: possible from 50 to 100"):
        session.rewind(49)
    with pytest.raises(InvalidRequestError, match="rewind to 101 tokens"):
        session.rewind(101)
    with pytest.raises(InvalidRequestError, match="rewind to -1 tokens"):
        session.rewind(-1)
    check_continues(session, engine, 5)


# --- the end of the context


def test_overflow_is_refused_and_harmless(model: Path) -> None:
    engine = open_engine(model, context=40)
    session = _engine.Session(engine)
    ids = random_ids(40, VOCAB)
    feed(session, ids[:38], chunk=19)
    with pytest.raises(InvalidRequestError, match="holds 40 tokens; 38 are used and 3 more do not fit"):
        session.append(random_ids(3, VOCAB))
    assert session.n_tokens == 38
    want = logits_of(open_engine(model), ids)
    assert largest_difference(feed(session, ids[38:], chunk=1), want[38:]) < EXACT  # up to the very end
    with pytest.raises(InvalidRequestError, match="1 more do not fit"):
        session.append(ids[:1])
    with pytest.raises(InvalidRequestError, match="41 tokens do not fit the context of 40"):
        session.sync(random_ids(41, VOCAB))
    assert session.n_tokens == 40


@pytest.mark.parametrize("context", [1, 63, 64, 65])
def test_small_contexts_fill_up(model: Path, context: int) -> None:
    ids = random_ids(context, VOCAB)
    want = logits_of(open_engine(model), ids)
    assert largest_difference(logits_of(open_engine(model, context=context), ids, chunk=min(7, context)), want) < EXACT


def test_bad_tokens_are_named(hybrid: Path) -> None:
    session = _engine.Session(open_engine(hybrid))
    for bad in (-1, VOCAB):
        with pytest.raises(InvalidRequestError, match=f"token 1 is {bad}; the vocabulary has {VOCAB} tokens"):
            session.sync(np.array([0, bad], np.int32))
    assert session.n_tokens == 0
