"""A scorer in the memory of a target's weights: both compute every bit as with memory of their own, whatever happens
while the target is parked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from engines import Decoder, open_engine, open_scorer, random_ids
from lucebox import _engine
from lucebox.errors import InvalidRequestError, OutOfMemoryError
from numpy.typing import NDArray
from reference.gguf_files import Shape, write_model

SMALL = {"hidden": 64, "ffn": 64, "n_heads": 2, "n_kv_heads": 1, "head_dim": 64}
# Rows of the embedding are weights that cost the simulator no time.
HYBRID = Shape("qwen35", n_layers=2, recurrent=(True, False), d_state=64, vocab=6001, **SMALL)
SCORING = {"kv": "f16", "context": 128}
PROMPT = random_ids(70, HYBRID.vocab).tolist()  # over a page
VOCAB = 131  # of the scorers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("lent")
    write_model(made / "target.gguf", HYBRID)
    write_model(made / "plain.gguf", Shape("qwen3", n_layers=2, max_context=1 << 16, **SMALL))
    write_model(made / "hybrid.gguf", Shape("qwen35", n_layers=2, recurrent=(True, False), d_state=64, **SMALL))
    return made


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("scorer", "path"),
    [
        ("plain", "megakernel"),
        ("hybrid", "graph"),
        pytest.param("plain", "graph", marks=pytest.mark.slow),  # 2 to 3 s each
        pytest.param("hybrid", "megakernel", marks=pytest.mark.slow),
    ],
)
def test_every_bit_is_that_of_both_loaded(pack: _engine.gpu.Pack, folder: Path, scorer: str, path: str) -> None:
    """The scorer is loaded and run in the middle of an answer: a step started ahead completes before its weights go."""
    file, target = folder / f"{scorer}.gguf", folder / "target.gguf"
    beside = open_scorer(file, pack=pack, **SCORING)
    alone = Decoder(open_engine(target, pack=pack, decode_path=path), PROMPT)
    wanted = [alone.decode(2) for _ in range(4)]

    lender = open_engine(target, pack=pack, decode_path=path)
    decoder = Decoder(lender, PROMPT)
    got = [decoder.decode(2)]
    saved = decoder.session.save()
    lent = open_scorer(file, pack=pack, lender=lender, **SCORING)
    for n in (70, 9, 65):
        got.append(decoder.decode(2))
        ids = random_ids(n, VOCAB)
        np.testing.assert_array_equal(lent.score(ids), beside.score(ids))
    assert got == wanted
    np.testing.assert_array_equal(decoder.session.logits(), alone.session.logits())
    restored = _engine.Session(lender)
    restored.load(saved)
    assert restored.sync(np.asarray(decoder.ids, np.int32)) == len(PROMPT) + 2


class Parked:
    """A lender and its scorer, with the results that each has alone."""

    def __init__(self, pack: _engine.gpu.Pack, folder: Path) -> None:
        self.pack, self.folder = pack, folder
        self.text, self.prompt = random_ids(20, VOCAB), random_ids(9, HYBRID.vocab)
        self.target = open_engine(folder / "target.gguf", pack=pack)
        self.logits = self.computed()
        self.scores = open_scorer(folder / "plain.gguf", pack=pack, **SCORING).score(self.text)
        self.scorer = self.opened("plain.gguf")

    def opened(self, file: str, **options: object) -> _engine.PromptScorer:
        options = SCORING | options
        return open_scorer(self.folder / file, pack=self.pack, lender=self.target, **options)

    def computed(self) -> NDArray[np.float32]:
        session = _engine.Session(self.target)
        session.sync(self.prompt)
        return session.logits()

    def check(self) -> None:
        np.testing.assert_array_equal(self.computed(), self.logits)
        np.testing.assert_array_equal(self.scorer.score(self.text), self.scores)
        np.testing.assert_array_equal(self.computed(), self.logits)


@pytest.fixture
def parked(pack: _engine.gpu.Pack, folder: Path) -> Parked:
    return Parked(pack, folder)


def stop(done: int, total: int) -> None:
    raise KeyError(done)


def test_a_failure_brings_the_target_back(parked: Parked) -> None:
    with pytest.raises(KeyError):
        parked.scorer.score(parked.text, progress=stop)
    parked.check()
    with pytest.raises(KeyError):
        parked.opened("hybrid.gguf", progress=stop)
    parked.check()


@pytest.mark.slow  # 14 s
def test_threads_take_turns(parked: Parked) -> None:
    """Two threads drive a target and its scorer at the same time."""
    failures: list[BaseException] = []

    def repeat(compute: Callable[[], NDArray[np.float32]], wanted: NDArray[np.float32]) -> None:
        try:
            for _ in range(4):
                np.testing.assert_array_equal(compute(), wanted)
        except BaseException as error:
            failures.append(error)

    pairs = [(lambda: parked.scorer.score(parked.text), parked.scores), (parked.computed, parked.logits)]
    threads = [threading.Thread(target=repeat, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_all_of_the_weights_can_be_borrowed(parked: Parked) -> None:
    """The borrowed weights bound the scorer's context; its plan equals the plan of a scorer with separate memory."""
    file, options = parked.folder / "plain.gguf", SCORING | {"pack": parked.pack, "lender": parked.target}
    largest = open_scorer(file, **options | {"context": 0})
    weights = next(size for name, size, _, _ in parked.target.plan["entries"] if name == "weights")
    assert weights - 64 * 1024 < largest.plan["total_bytes"] <= largest.plan["available_bytes"] == weights
    context = largest.plan["context"]
    assert (
        open_scorer(file, **options | {"context": context, "lender": None}).plan["entries"] == largest.plan["entries"]
    )
    np.testing.assert_array_equal(largest.score(parked.text), parked.scores)
    parked.check()
    with pytest.raises(OutOfMemoryError, match=r"of the target's weights on \w+(:\d)? are available"):
        open_scorer(file, **options | {"context": context + 64})
    parked.check()


def test_who_cannot_lend_or_borrow(parked: Parked) -> None:
    file = parked.folder / "plain.gguf"
    with pytest.raises(InvalidRequestError, match="on the CPU needs no lender"):
        open_scorer(file, lender=parked.target, **SCORING)
    with pytest.raises(InvalidRequestError, match="the lender is on cpu"):
        open_scorer(file, pack=parked.pack, lender=open_engine(file), **SCORING)
    with pytest.raises(TypeError, match="the engine has no option lender"):
        open_engine(file, pack=parked.pack, lender=parked.target)
    parked.check()
