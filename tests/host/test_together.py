"""Sessions that compute together write what each writes alone, bit by bit, whatever their company."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draft_pairs import FIRST, TARGET
from drafts import SAMPLINGS, VOCAB, random_tree
from engines import open_engine, random_ids
from lucebox import _engine
from lucebox.errors import InvalidRequestError
from numpy.typing import NDArray
from reference import draft_files
from reference.gguf_files import Shape, write_model

N = 24  # tokens of each sequence
SEQUENCES = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("together")
    write_model(made / "hybrid.gguf", Shape(n_layers=3, recurrent=(True, False, True)))
    write_model(made / "attention.gguf", Shape("qwen3", n_layers=2))
    write_model(made / "target.gguf", TARGET)  # with a prediction block
    draft_files.write_gguf(made / "first.gguf", FIRST)
    return made


class Sequence:
    """A prompt and its continuation by a separate sampler, with the logits of every token."""

    def __init__(self, engine: _engine.Engine, number: int, session: _engine.Session | None = None) -> None:
        self.session = _engine.Session(engine) if session is None else session
        self.ids = random_ids(3 + 7 * number, VOCAB, number).tolist()
        self.end = len(self.ids) + N
        options = list(SAMPLINGS.values())[number % len(SAMPLINGS)] | {"seed": number}
        self.sampler = _engine.Sampler(VOCAB, **options)
        self.sampler.set_prompt(np.array(self.ids, np.int32))
        self.mask = np.random.default_rng(number).integers(0, 1 << 32, (VOCAB + 31) // 32, dtype=np.uint32)
        self.is_masked = number % 3 == 0
        self.logits: list[NDArray[np.float32]] = []

    @property
    def is_done(self) -> bool:
        return len(self.ids) == self.end

    @property
    def array(self) -> NDArray[np.int32]:
        return np.array(self.ids, np.int32)

    def choose(self) -> None:
        self.logits.append(self.session.logits())
        if self.is_masked:
            self.sampler.set_mask(self.mask)
        self.ids.append(self.session.sample(self.sampler))

    def alone(self) -> None:
        self.session.sync(self.array)
        self.choose()


def together(sequences: list[Sequence]) -> None:
    _engine.sync_together([one.session for one in sequences], [one.array for one in sequences])
    for one in sequences:
        one.choose()


ENGINES: dict[str, dict[str, Any]] = {
    "hybrid": {},
    "attention": {"activations": "int8", "kv": "q8_0/wht4"},
    "hybrid-suffix": {"draft": "suffix", "activations": "int8", "threads": 2},
    "target-dflash": {"draft": "first.gguf+suffix", "kv": "f16"},
    "target-mtp": {"draft": "mtp", "activations": "int8"},
}


@pytest.mark.first_case
@pytest.mark.parametrize("name", ENGINES)
def test_company_changes_no_bit(folder: Path, name: str, seed: int) -> None:
    options = dict(ENGINES[name])
    if options.get("draft", "").startswith("first"):
        options["draft"] = str(folder / options["draft"])
    engine = open_engine(folder / f"{name.partition('-')[0]}.gguf", **options)
    alone = [Sequence(engine, number) for number in range(SEQUENCES)]
    for one in alone:
        one.session.set_drafting(False)
        while not one.is_done:
            one.alone()
    sessions = [_engine.Session(engine) for _ in range(SEQUENCES)]
    rng = np.random.default_rng(seed)
    for _ in range(4):
        mixed = [Sequence(engine, number, session) for number, session in enumerate(sessions)]
        while open_ones := [one for one in mixed if not one.is_done]:
            chosen = rng.permutation(np.array(open_ones, object))[: rng.integers(1, len(open_ones) + 1)].tolist()
            if rng.random() < 0.1:
                chosen[0].alone()
            else:
                together(chosen)
        for want, got in zip(alone, mixed, strict=True):
            assert got.ids == want.ids
            assert all(np.array_equal(a, b) for a, b in zip(got.logits, want.logits, strict=True))
        for session in sessions[::2]:
            session.reset()
    if "draft" in options:
        assert sum(session.draft_counts["verified"] for session in sessions) > 0


def test_suggested_trees_beside_others(folder: Path, seed: int) -> None:
    """Verifies trees of any shape, some of which fill the pass, together with single rows."""
    engine = open_engine(folder / "hybrid.gguf", draft="suffix")
    alone = [Sequence(engine, number) for number in range(6)]
    for one in alone:
        one.session.set_drafting(False)
        while not one.is_done:
            one.alone()
    rng = np.random.default_rng(seed)
    mixed = [Sequence(engine, number) for number in range(6)]
    for one in mixed:
        one.session.set_drafting(False)
    while open_ones := [one for one in mixed if not one.is_done]:
        for one in open_ones:
            future = alone[mixed.index(one)].ids[len(one.ids) :]  # after the newest token, the root
            if future and rng.random() < 0.4:
                tokens, parents = random_tree(rng, future, int(rng.integers(1, 50)))
                one.session.suggest(np.array(tokens, np.int32), parents)
        together(open_ones)
    assert [one.ids for one in mixed] == [one.ids for one in alone]
    counts = [one.session.draft_counts for one in mixed]
    assert sum(count["verified"] for count in counts) > 10 and sum(count["accepted"] for count in counts) > 10


def test_more_sequences_than_rows_of_a_pass(folder: Path) -> None:
    engine = open_engine(folder / "attention.gguf", context=64, prefill_chunk=5)
    sequences = [Sequence(engine, number % 4) for number in range(12)]
    while not sequences[0].is_done:
        together(sequences)
    alone = Sequence(engine, 0)
    while not alone.is_done:
        alone.alone()
    assert all(one.ids == alone.ids for one in sequences[::4])


def test_timelines_that_lack_more_than_a_row(folder: Path) -> None:
    """Prompts, and other continuations, are computed as sync() does."""
    engine = open_engine(folder / "hybrid.gguf")
    sessions = [_engine.Session(engine) for _ in range(3)]
    prompts = [random_ids(n, VOCAB, n) for n in (90, 5, 1)]
    assert _engine.sync_together(sessions, prompts) == 0
    longer = [np.append(prompt, np.int32(7)) for prompt in prompts]
    assert _engine.sync_together(sessions, longer) == 3
    assert _engine.sync_together(sessions, longer) == 0
    other = [np.append(prompt[:-1], np.int32(9)) for prompt in longer]
    _engine.sync_together(sessions, other)
    for session, ids in zip(sessions, other, strict=True):
        fresh = _engine.Session(engine)
        fresh.sync(ids)
        assert session.tokens == ids.tolist() and np.array_equal(session.logits(), fresh.logits())


def test_refusals_leave_the_sessions_as_they_were(folder: Path) -> None:
    engine = open_engine(folder / "hybrid.gguf", context=16)
    other = _engine.Session(open_engine(folder / "attention.gguf"))
    sessions = [_engine.Session(engine) for _ in range(2)]
    ids = [random_ids(n, VOCAB, n) for n in (16, 9)]
    _engine.sync_together(sessions, ids)
    more = [np.append(one, np.int32(1)) for one in ids]
    for call, error in (
        (([sessions[0], other], ids), "belong to different engines"),
        (([sessions[0]] * 2, ids), "takes each session once"),
        ((sessions, ids[:1]), "1 token lists for 2 sessions"),
        ((sessions[::-1], more[::-1]), "17 tokens do not fit the context of 16"),
    ):
        with pytest.raises(InvalidRequestError, match=error):
            _engine.sync_together(*call)
        assert [session.tokens for session in sessions] == [one.tolist() for one in ids]
    _engine.sync_together([], [])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_long_sequences(folder: Path, threads: int) -> None:
    """Several splits of a context, by one thread or by all of them."""
    engine = open_engine(folder / "attention.gguf", context=2600, threads=threads, activations="int8")
    prompts = [random_ids(n, VOCAB, n) for n in (2500, 1100, 40)]
    sessions, fresh = [_engine.Session(engine) for _ in prompts], _engine.Session(engine)
    _engine.sync_together(sessions, prompts)
    longer = [np.append(prompt, np.int32(7)) for prompt in prompts]
    assert _engine.sync_together(sessions, longer) == 3
    for session, ids in zip(sessions, longer, strict=True):
        fresh.reset()
        fresh.sync(ids)
        assert np.array_equal(session.logits(), fresh.logits())
