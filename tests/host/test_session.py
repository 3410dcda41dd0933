"""Sessions as callers use them: prefix reuse, scores, snapshots, the same bits every time."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from engines import feed, largest_difference, log_softmax, logits_of, open_engine, random_ids
from lucebox import _engine
from lucebox.errors import CancelledError, FormatError, InvalidRequestError, UnsupportedError
from reference.gguf_files import Shape, write_model
from tolerances import tolerance

EXACT = tolerance("logits", "f32")
HYBRID = Shape(n_layers=3, recurrent=(True, False, True))
VOCAB = HYBRID.vocab
HEADER = struct.Struct("<8sIIQ")  # magic, version, CRC-32 of the body, its size


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("session")
    write_model(made / "hybrid.gguf", HYBRID)
    write_model(made / "attention.gguf", Shape("qwen3", n_layers=2))
    # wide enough for every op to be cut between threads
    wide = {"n_layers": 2, "hidden": 256, "ffn": 768, "n_heads": 8, "n_kv_heads": 4, "head_dim": 64, "dtype": "Q8_0"}
    write_model(made / "wide_hybrid.gguf", Shape(recurrent=(True, False), d_state=64, n_v_heads=8, **wide))
    write_model(made / "wide_attention.gguf", Shape("qwen3", **wide))
    write_model(made / "other.gguf", Shape(n_layers=3, recurrent=(True, False, True), seed=1))
    return made


@pytest.fixture(params=["hybrid", "attention"])
def model(request: pytest.FixtureRequest, folder: Path) -> Path:
    return folder / f"{request.param}.gguf"


# --- sync


def cold(engine: _engine.Engine, ids: np.ndarray) -> np.ndarray:
    session = _engine.Session(engine)
    assert session.sync(ids) == 0
    return session.logits()


def test_sync_reuses_what_it_can(model: Path, isa: str) -> None:
    engine = open_engine(model, isa=isa, prefill_chunk=16)
    session = _engine.Session(engine)
    ids = random_ids(100, VOCAB)
    fork = ids.copy()
    fork[98] ^= 1
    early = ids.copy()
    early[3] ^= 1
    recurrent = model.stem == "hybrid"
    # Recurrent layers step back at most to the start of the last chunk (96 of 100); beyond that they start again.
    for what, prompt, cached in (
        ("first", ids[:60], 0),
        ("identical", ids[:60], 60),
        ("longer", ids, 60),
        ("identical again", ids, 100),
        ("diverging in the last chunk", fork, 98),
        ("diverging early", early, 0 if recurrent else 3),
        ("shorter", early[:40], 0 if recurrent else 39),
        ("one token", early[:1], 0),
    ):
        assert session.sync(prompt) == cached, what
        assert session.tokens == prompt.tolist(), what
        assert largest_difference(session.logits(), cold(engine, prompt)) < EXACT, what


def test_sync_after_append_drops_the_appended_rows(model: Path) -> None:
    engine = open_engine(model)
    session = _engine.Session(engine)
    ids = random_ids(30, VOCAB)
    session.sync(ids[:20])
    session.append(random_ids(5, VOCAB, seed=1))
    assert session.sync(ids) == 20
    assert largest_difference(session.logits(), cold(engine, ids)) < EXACT


def test_identical_sync_after_append_has_the_right_logits(model: Path) -> None:
    engine = open_engine(model)
    session = _engine.Session(engine)
    ids = random_ids(30, VOCAB)
    session.sync(ids)
    session.append(random_ids(5, VOCAB, seed=1))
    session.sync(ids)
    assert largest_difference(session.logits(), cold(engine, ids)) < EXACT


def test_decode_by_sync_equals_prefill(model: Path, isa: str) -> None:
    engine = open_engine(model, isa=isa)
    session = _engine.Session(engine)
    ids = random_ids(90, VOCAB)
    want = logits_of(engine, ids)
    for n in range(60, 91):
        assert session.sync(ids[:n]) == (0 if n == 60 else n - 1)
        assert largest_difference(session.logits(), want[n - 1]) < EXACT


def test_empty_prompt(model: Path) -> None:
    with pytest.raises(InvalidRequestError, match="at least one"):
        _engine.Session(open_engine(model)).sync(np.array([], np.int32))


def test_progress_counts_what_is_computed(model: Path) -> None:
    session = _engine.Session(open_engine(model, prefill_chunk=16))
    ids = random_ids(50, VOCAB)
    seen: list[tuple[int, int]] = []
    session.sync(ids[:20])
    session.sync(ids, lambda done, total: seen.append((done, total)))
    assert seen == [(12, 30), (28, 30), (30, 30)]  # chunks end at multiples of 16


def test_error_in_progress_leaves_the_session_usable(model: Path) -> None:
    engine = open_engine(model, prefill_chunk=16)
    session = _engine.Session(engine)
    ids = random_ids(50, VOCAB)

    def stop(done: int, total: int) -> None:
        if done >= 32:
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, CancelledError)):
        session.sync(ids, stop)
    session.sync(ids)
    assert largest_difference(session.logits(), cold(engine, ids)) < EXACT


# --- scores


def test_score_is_the_log_probability_of_each_next_token(model: Path, isa: str) -> None:
    engine = open_engine(model, isa=isa, prefill_chunk=16)
    ids = random_ids(50, VOCAB)
    want = log_softmax(logits_of(engine, ids, 16).astype(np.float64))[np.arange(49), ids[1:]]
    assert largest_difference(_engine.Session(engine).score(ids), want) < EXACT


def test_score_needs_two_tokens(model: Path) -> None:
    with pytest.raises(InvalidRequestError, match="at least two tokens, got 1"):
        _engine.Session(open_engine(model)).score(random_ids(1, VOCAB))


def test_logprobs_of_the_last_row(model: Path) -> None:
    session = _engine.Session(open_engine(model))
    session.sync(random_ids(10, VOCAB))
    want = log_softmax(session.logits().astype(np.float64))
    token, top = session.logprobs(7, 5)
    order = np.argsort(-want, kind="stable")[:5]
    assert abs(token - want[7]) < 1e-12
    assert [i for i, _ in top] == order.tolist()
    assert largest_difference([p for _, p in top], want[order]) < 1e-12


# --- the same bits


def run_everything(engine: _engine.Engine) -> list[np.ndarray]:
    session = _engine.Session(engine)
    results = [feed(session, random_ids(100, VOCAB), chunk=33)]
    results.append(
        session.append(random_ids(20, VOCAB, seed=1), parents=[(i - 1) // 2 if i else -1 for i in range(20)])[0]
    )
    session.commit([0, 2, 5])
    results.append(feed(session, random_ids(5, VOCAB, seed=2), chunk=1))
    return results


@pytest.mark.first_case
@pytest.mark.parametrize("activations", ["f32", "int8"])
@pytest.mark.parametrize("name", ["wide_hybrid", "wide_attention"])
def test_two_runs_and_two_threads_give_the_same_bits(folder: Path, name: str, isa: str, activations: str) -> None:
    path = folder / f"{name}.gguf"
    first = run_everything(open_engine(path, isa=isa, activations=activations))
    for threads in (1, 3):
        again = run_everything(open_engine(path, isa=isa, activations=activations, threads=threads))
        for a, b in zip(first, again, strict=True):
            assert np.array_equal(a, b), threads


def test_sessions_of_one_engine_do_not_disturb_each_other(model: Path) -> None:
    engine = open_engine(model)
    alone = logits_of(engine, random_ids(60, VOCAB), chunk=20)
    one, other = _engine.Session(engine), _engine.Session(engine)
    mixed = []
    for at in range(0, 60, 20):
        mixed.append(feed(one, random_ids(60, VOCAB)[at : at + 20], chunk=20))
        feed(other, random_ids(30, VOCAB, seed=at + 1))
    assert np.array_equal(np.concatenate(mixed), alone)


# --- snapshots


@pytest.mark.parametrize("kv", ["f32", "f16", "q8_0/q4_1", "tq3_0", "wht4/fp8"])
@pytest.mark.parametrize("n", [1, 64, 90])
def test_restored_equals_kept(model: Path, kv: str, n: int) -> None:
    """Bit for bit the session that was saved, in a fresh session and in a used one."""
    engine = open_engine(model, kv=kv)
    session = _engine.Session(engine)
    feed(session, random_ids(n, VOCAB), chunk=30)
    data = session.save()
    more = random_ids(20, VOCAB, seed=1)
    want = feed(session, more, chunk=4)
    used = _engine.Session(engine)
    feed(used, random_ids(77, VOCAB, seed=3))
    for restored in (_engine.Session(engine), used):
        restored.load(data)
        assert restored.tokens == random_ids(n, VOCAB).tolist()
        assert np.array_equal(feed(restored, more, chunk=4), want)


def test_restored_equals_recomputed(model: Path, isa: str) -> None:
    """Saving folds at the length saved; a session that saved there too has the same bits."""
    engine = open_engine(model, isa=isa)
    ids = random_ids(60, VOCAB)
    saved, again = _engine.Session(engine), _engine.Session(engine)
    for session in (saved, again):
        feed(session, ids, chunk=20)
    data = saved.save()
    assert again.save() == data
    restored = _engine.Session(open_engine(model, isa=isa, context=100))
    restored.load(data)
    more = random_ids(30, VOCAB, seed=1)
    assert np.array_equal(feed(restored, more), feed(again, more))
    assert largest_difference(feed(_engine.Session(engine), [*ids, *more])[60:], feed_after(engine, data, more)) < EXACT


def feed_after(engine: _engine.Engine, data: bytes, ids: np.ndarray) -> np.ndarray:
    session = _engine.Session(engine)
    session.load(data)
    return feed(session, ids)


def test_empty_session_can_be_saved(model: Path) -> None:
    engine = open_engine(model)
    data = _engine.Session(engine).save()
    used = _engine.Session(engine)
    ids = random_ids(20, VOCAB)
    feed(used, random_ids(9, VOCAB, seed=1))
    used.load(data)
    assert used.tokens == []
    assert np.array_equal(feed(used, ids), logits_of(engine, ids))


def test_sync_goes_on_after_load(model: Path) -> None:
    engine = open_engine(model)
    ids = random_ids(50, VOCAB)
    session = _engine.Session(engine)
    session.sync(ids[:40])
    restored = _engine.Session(engine)
    restored.load(session.save())
    assert restored.sync(ids) == 40
    assert largest_difference(restored.logits(), cold(engine, ids)) < EXACT


def sealed(data: bytes, body: bytes) -> bytes:
    """A snapshot with another body whose checksum and size are right: only the content can give it away."""
    magic, version, _, _ = HEADER.unpack_from(data)
    return HEADER.pack(magic, version, zlib.crc32(body), len(body)) + body


@pytest.fixture
def refuses(model: Path):  # type: ignore[no-untyped-def]
    """Loads a snapshot that must be refused, and checks that the session neither moved nor changed."""
    engine = open_engine(model)
    donor = _engine.Session(engine)
    feed(donor, random_ids(40, VOCAB))
    data = donor.save()
    session = _engine.Session(engine)
    feed(session, random_ids(30, VOCAB, seed=1))
    untouched = _engine.Session(engine)
    feed(untouched, random_ids(30, VOCAB, seed=1))
    more = random_ids(3, VOCAB, seed=2)
    want = untouched.append(more)[0]

    def check(damaged: bytes, error: type[Exception] = FormatError) -> str:
        with pytest.raises(error, match=r"saved\.lbs: ") as caught:
            session.load(damaged, "saved.lbs")
        assert session.tokens == random_ids(30, VOCAB, seed=1).tolist()
        assert np.array_equal(session.append(more)[0], want)
        return str(caught.value)

    return data, check


def test_truncated_snapshots(refuses) -> None:  # type: ignore[no-untyped-def]
    data, check = refuses
    for length in (0, 1, 23, 24, 30, len(data) // 2, len(data) - 1):
        check(data[:length])


def test_any_flipped_bit_is_seen(refuses) -> None:  # type: ignore[no-untyped-def]
    data, check = refuses
    rng = np.random.default_rng(0)
    for at in [*range(HEADER.size), *rng.integers(HEADER.size, len(data), 30).tolist()]:
        damaged = bytearray(data)
        damaged[at] ^= 1 << int(rng.integers(8))
        check(bytes(damaged), (FormatError, UnsupportedError))


def test_inconsistent_body_with_a_right_checksum(refuses) -> None:  # type: ignore[no-untyped-def]
    data, check = refuses
    body = data[HEADER.size :]
    (n_print,) = struct.unpack_from("<I", body)
    count_at = 4 + n_print + 2
    while struct.unpack_from("<I", body, count_at)[0] != 40:  # the types before it have the compiler's size
        count_at += 1
    assert "left over" in check(sealed(data, body + b"\0"))
    check(sealed(data, body[:-1]))
    for count in (39, 41):
        check(sealed(data, body[:count_at] + struct.pack("<I", count) + body[count_at + 4 :]))
    too_many = struct.pack("<I", 2**32 - 1)
    check(sealed(data, body[:count_at] + too_many + body[count_at + 4 :]), UnsupportedError)
    assert "bytes expected" in check(sealed(data, struct.pack("<I", 2**31) + body[4:]))
    for vocab_end in (VOCAB, -1):
        bad_token = struct.pack("<i", vocab_end)
        check(sealed(data, body[: count_at + 4] + bad_token + body[count_at + 8 :]))


def test_foreign_snapshots(folder: Path, refuses) -> None:  # type: ignore[no-untyped-def]
    data, check = refuses
    for path, options in (
        (folder / "other.gguf", {}),
        (folder / "hybrid.gguf", {"activations": "int8"}),
        (folder / "hybrid.gguf", {"kv": "f16"}),
        (folder / "hybrid.gguf", {"kv": "f32/q8_0"}),
    ):
        foreign = _engine.Session(open_engine(path, **options))
        feed(foreign, random_ids(10, VOCAB))
        check(foreign.save(), UnsupportedError)
    assert "version" in check(data[:8] + struct.pack("<I", 99) + data[12:], UnsupportedError)
    check(b"GGUF" + data[4:])


def test_snapshot_longer_than_the_context(model: Path) -> None:
    session = _engine.Session(open_engine(model))
    feed(session, random_ids(40, VOCAB))
    small = _engine.Session(open_engine(model, context=39))
    with pytest.raises(UnsupportedError, match="40 tokens; this session's context is 39"):
        small.load(session.save())
