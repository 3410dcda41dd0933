"""The KV cache that sessions of an engine share: pages taken and given back, copied on write, forked, swapped out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draft_pairs import FIRST, TARGET
from engines import Ids, open_engine, random_ids
from lucebox import _engine
from lucebox.errors import InvalidRequestError, OutOfMemoryError
from reference import draft_files
from reference.gguf_files import Shape, write_model

PAGE = 64
N = 30  # tokens generated
VOCAB = TARGET.vocab


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("pool")
    write_model(made / "hybrid.gguf", Shape(n_layers=3, recurrent=(True, False, True)))
    write_model(made / "attention.gguf", Shape("qwen3", n_layers=2))
    write_model(made / "windows.gguf", Shape("gpt-oss", n_layers=2, window=70))
    write_model(made / "target.gguf", TARGET)
    draft_files.write_gguf(made / "first.gguf", FIRST)
    return made


ENGINES: dict[str, dict[str, Any]] = {
    "hybrid": {},
    "attention": {"activations": "int8", "kv": "q8_0/wht4"},
    "windows": {"activations": "int8", "kv": "f16"},
    "hybrid-suffix": {"draft": "suffix", "activations": "int8"},
    "target-dflash": {"draft": "first.gguf+suffix", "kv": "f16"},
}


@pytest.fixture(params=ENGINES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(folder: Path, name: str) -> _engine.Engine:
    return open_named(folder, name)


@pytest.fixture
def alone(folder: Path, name: str) -> _engine.Session:
    """A session of a separate engine."""
    return _engine.Session(open_named(folder, name))


def open_named(folder: Path, name: str, **more: Any) -> _engine.Engine:
    options = {"sessions": 1, "context": 512} | ENGINES[name] | more
    if "draft" in options:
        options["draft"] = str(options["draft"]).replace("first.gguf", str(folder / "first.gguf"))
    return open_engine(folder / f"{name.split('-')[0]}.gguf", **options)


def n_used(engine: _engine.Engine) -> int:
    return engine.n_pages - engine.n_free_pages


def decode(session: _engine.Session, ids: Ids, n: int = N) -> tuple[list[int], bytes]:
    """n tokens after ids, and the logits after them."""
    sampler, made = _engine.Sampler(VOCAB), ids.tolist()
    for _ in range(n):
        session.sync(np.array(made, np.int32))
        made.append(session.sample(sampler))
    session.sync(np.array(made, np.int32))
    return made, session.logits().tobytes()


def test_a_session_holds_the_pages_of_its_tokens(engine: _engine.Engine) -> None:
    assert (engine.n_pages, n_used(engine)) == (8, 0)
    first, second = _engine.Session(engine), _engine.Session(engine)
    for n in (1, PAGE, PAGE + 1, 200):
        first.sync(random_ids(n, VOCAB))
        second.sync(random_ids(n, VOCAB, 1))
        assert first.n_pages == second.n_pages == -(-n // PAGE)
        assert n_used(engine) == first.n_pages + second.n_pages
    second.reset()
    assert second.n_pages == 0 and n_used(engine) == first.n_pages
    del first
    assert n_used(engine) == 0


def test_a_full_cache_is_an_error_that_changes_nothing(engine: _engine.Engine, alone: _engine.Session) -> None:
    first, second = _engine.Session(engine), _engine.Session(engine)
    ids = random_ids(7 * PAGE, VOCAB)
    first.sync(ids[: 6 * PAGE])
    second.sync(random_ids(2 * PAGE, VOCAB, 1))
    with pytest.raises(OutOfMemoryError, match=r"the KV cache of 512 tokens is full: 64 more after 384 do not fit"):
        first.sync(ids)
    assert not first.reserve(6 * PAGE + 1) and first.reserve(6 * PAGE)
    second.reset()
    assert decode(first, ids, 1) == decode(alone, ids, 1)


def test_tokens_do_not_depend_on_the_pages(engine: _engine.Engine, alone: _engine.Session) -> None:
    """Sequences that grow by turns have pages apart, in any order."""
    sessions = [_engine.Session(engine) for _ in range(3)]
    prompts = [random_ids(120, VOCAB, i) for i in range(3)]
    for n in (20, 70, 100, 120):
        for i in (2, 0, 1):
            sessions[i].sync(prompts[i][:n])
    for n in (20, 70, 100, 120):  # the same appends
        alone.sync(prompts[1][:n])
    assert decode(sessions[1], prompts[1], 10) == decode(alone, prompts[1], 10)
    assert sessions[1].save() == alone.save()


@pytest.mark.parametrize("n", [1, PAGE - 1, PAGE, PAGE + 1, 150])
def test_fork(engine: _engine.Engine, alone: _engine.Session, n: int) -> None:
    """A fork goes on to the bit, shares what it can, and does not notice what becomes of its source."""
    prompt, other = random_ids(n, VOCAB), random_ids(n + 40, VOCAB, 1)
    source, fork, third = (_engine.Session(engine) for _ in range(3))
    fork.sync(other)
    source.sync(prompt)
    fork.fork(source)
    third.fork(source)
    assert fork.tokens == prompt.tolist() and n_used(engine) == -(-n // PAGE)
    assert fork.logits().tobytes() == source.logits().tobytes()
    before = source.logits()
    decode(third, prompt, 5)  # writes after the prompt, into a copy
    assert np.array_equal(source.logits(), before)
    expected = decode(alone, prompt)
    assert decode(source, prompt) == expected
    source.sync(other)
    third.reset()
    assert decode(fork, prompt) == expected
    fork.reset()
    source.reset()
    assert n_used(engine) == 0


def test_fork_of_a_sequence_that_decodes(engine: _engine.Engine, alone: _engine.Session) -> None:
    prompt = random_ids(100, VOCAB)
    source, fork = _engine.Session(engine), _engine.Session(engine)
    made, _ = decode(source, prompt, 7)
    ids = np.array(made, np.int32)
    fork.fork(source)
    source.reset()
    decode(alone, prompt, 7)
    assert decode(fork, ids) == decode(alone, ids)


def test_fork_without_a_free_page(engine: _engine.Engine) -> None:
    """The copy of the last page needs one; the source's own page suffices once the fork is gone."""
    source, fork, other = (_engine.Session(engine) for _ in range(3))
    prompt = random_ids(100, VOCAB)
    source.sync(prompt)
    fork.fork(source)
    other.sync(random_ids(6 * PAGE, VOCAB, 1))
    assert not source.reserve(101) and not fork.reserve(101) and source.reserve(100)
    with pytest.raises(OutOfMemoryError):
        decode(fork, prompt)
    assert fork.n_tokens == 100
    fork.reset()
    decode(source, prompt, 20)


def test_fork_of_another_engine(engine: _engine.Engine, alone: _engine.Session) -> None:
    with pytest.raises(InvalidRequestError, match="different engines"):
        _engine.Session(engine).fork(alone)


def test_swapped_out(engine: _engine.Engine, alone: _engine.Session) -> None:
    """Swapped pages come back unchanged, at any place in the pool."""
    prompt = random_ids(200, VOCAB)
    session, other = _engine.Session(engine), _engine.Session(engine)
    made, _ = decode(session, prompt, 5)
    expected = decode(alone, prompt, 5)[0]
    assert made == expected
    session.swap_out()
    assert session.is_swapped_out and session.n_pages == 0 and n_used(engine) == 0
    other.sync(random_ids(5 * PAGE, VOCAB, 1))
    given = other.logits()
    ids = np.array(made, np.int32)
    with pytest.raises(OutOfMemoryError):
        session.sync(np.append(ids, np.int32(3)))
    assert not session.reserve(len(ids)) and session.is_swapped_out
    alone.sync(ids)
    with pytest.raises(OutOfMemoryError, match="kv_tokens"):
        other.fork(session)  # which changes nothing
    assert other.n_tokens == 5 * PAGE and np.array_equal(other.logits(), given)
    other.sync(random_ids(PAGE, VOCAB, 1))
    assert session.save() == alone.save() and not session.is_swapped_out
    assert decode(session, ids) == decode(alone, ids)


def test_a_swapped_out_sequence_can_be_dropped(engine: _engine.Engine) -> None:
    session, other = _engine.Session(engine), _engine.Session(engine)
    session.sync(random_ids(200, VOCAB))
    session.swap_out()
    other.sync(random_ids(8 * PAGE, VOCAB, 1))
    session.reset()
    assert not session.is_swapped_out and session.n_tokens == 0


def test_page_runs_keep_pages(engine: _engine.Engine, alone: _engine.Session) -> None:
    """assemble() makes the same state of references and of bytes."""
    ids = random_ids(3 * PAGE + 10, VOCAB)
    n, ends = 3 * PAGE, [PAGE, 2 * PAGE, 3 * PAGE]
    source, session = _engine.Session(engine), _engine.Session(engine)
    source.sync(ids[:n])
    run, piece = source.share_pages(0, 2), source.read_pages(2, 1)
    state, windows = source.read_recurrent(), source.share_windows()
    source.sync(random_ids(n, VOCAB, 1))
    assert n_used(engine) == 3 + len(run)
    session.assemble(ids[:n], ends, 0, [run, piece], state, windows)
    assert n_used(engine) == 3 + 3
    alone.sync(ids[:n])
    assert decode(session, ids) == decode(alone, ids)
    source.reset()
    session.reset()
    assert n_used(engine) == len(run)
    del run
    assert n_used(engine) == 0


def test_kv_tokens(folder: Path) -> None:
    def opened(**options: Any) -> _engine.Engine:
        return open_named(folder, "attention", **options)

    assert opened(context=100, sessions=3).n_pages == 3 * 2
    assert opened(context=100, kv_tokens=300).options["kv_tokens"] == 320
    assert opened(context=0, kv_tokens=300).options["context"] == 300
    with pytest.raises(InvalidRequestError, match="kv_tokens = 99 is less than one context of 100 tokens"):
        opened(context=100, kv_tokens=99)
    plan = opened(context=512, sessions=4).plan
    sizes = {name: n_bytes for name, n_bytes, *_ in plan["entries"]}
    each = sum(n_bytes for _, n_bytes, _, per_session in plan["entries"] if per_session)
    with_all = plan["mapped_bytes"] + plan["total_bytes"] + 3 * each
    assert plan["kv_tokens"] == 4 * 512
    for left_out, kv_tokens in ((0, 4 * 512), (sizes["KV cache"] // 4, 3 * 512), (sizes["KV cache"] * 3 // 4, 512)):
        assert opened(context=512, sessions=4, memory_limit=with_all - left_out).plan["kv_tokens"] == kv_tokens
    left = max(8, (sizes["KV cache"] - 3 * each) // (sizes["KV cache"] // 32))  # pages that the other states leave
    assert opened(context=512, sessions=4, memory_limit=with_all - 3 * each).plan["kv_tokens"] == 64 * left
    assert left < 32
