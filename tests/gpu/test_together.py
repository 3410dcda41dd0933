"""Sessions that a device batches into one pass generate the same tokens as alone."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, cycle, product
from pathlib import Path

import numpy as np
import pytest
from drafts import SAMPLINGS, random_tree
from engines import open_engine, random_ids
from lucebox import _engine
from reference.gguf_files import Shape, write_model

VOCAB, N = 96, 6
HEADS = {"n_heads": 2, "n_kv_heads": 1, "head_dim": 64}
SHAPES = {
    "hybrid": Shape(
        "qwen35", n_layers=2, recurrent=(True, False), d_state=64, n_v_heads=2, n_mtp=1, vocab=VOCAB, **HEADS
    ),
    "attention": Shape("qwen3", n_layers=2, vocab=VOCAB, **HEADS),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("together")
    for name, shape in SHAPES.items():
        write_model(made / f"{name}.gguf", shape)
    return made


class Sequence:
    """A prompt and its continuation."""

    def __init__(self, engine: _engine.Engine, prompt: list[int], number: int) -> None:
        self.session, self.ids, self.end = _engine.Session(engine), list(prompt), len(prompt) + N
        self.sampler = _engine.Sampler(VOCAB, **list(SAMPLINGS.values())[number % len(SAMPLINGS)])
        self.sampler.set_prompt(np.array(prompt, np.int32))
        self.mask = np.array([0xFFFFFFF7] * (VOCAB // 32), np.uint32) if number == 1 else None

    @property
    def array(self) -> np.ndarray:
        return np.array(self.ids, np.int32)

    def choose(self) -> None:
        if self.mask is not None:
            self.sampler.set_mask(self.mask)
        self.ids.append(self.session.sample(self.sampler))

    def write(self) -> list[int]:
        """Generates the whole continuation, alone."""
        while len(self.ids) < self.end:
            self.session.sync(self.array)
            self.choose()
        return self.ids


CASES = [
    ("hybrid", "mtp+suffix", "graph", "q8_0/wht4"),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in product(SHAPES, ("none", "suffix"), ("graph", "megakernel"), ("f32", "wht4"))
    ),
]


@pytest.mark.slow  # 3 s; every day, the bits
@pytest.mark.parametrize("model, draft, path, kv", CASES)
def test_company_changes_no_token(
    pack: _engine.gpu.Pack, folder: Path, model: str, draft: str, path: str, kv: str, seed: int
) -> None:
    """Some steps are taken alone, some trees are suggested, and one sequence has a mask."""
    engine = open_engine(folder / f"{model}.gguf", pack=pack, draft=draft, decode_path=path, kv=kv, context=96)
    rng = np.random.default_rng(seed)
    prompts = [random_ids(n, VOCAB, seed + n).tolist() for n in (61, 3, 1)]
    alone = []
    for number, prompt in enumerate(prompts):
        one = Sequence(engine, prompt, number)
        one.session.set_drafting(False)
        alone.append(one.write())
    mixed = [Sequence(engine, prompt, number) for number, prompt in enumerate(prompts)]
    n_together = 0
    while open_ones := [one for one in mixed if len(one.ids) < one.end]:
        chosen = [one for one in open_ones if rng.random() < 0.8]
        if draft != "none" and rng.random() < 0.5 and chosen:
            one = chosen[0]
            future = alone[mixed.index(one)][len(one.ids) :]  # after the newest token, the root
            tokens, parents = random_tree(rng, future, int(rng.integers(1, 20))) if future else ([], [])
            one.session.suggest(np.array(tokens, np.int32) % VOCAB, parents)
        if len(chosen) > 1:
            n_together += _engine.sync_together([one.session for one in chosen], [one.array for one in chosen])
        started = chosen if rng.random() < 0.6 else []  # after a pass, or where there is nothing to start
        for one in started:
            if one.mask is not None:
                one.sampler.set_mask(one.mask)
        _engine.start_samples([one.session for one in started], [one.sampler for one in started])
        for one in chosen:
            one.session.sync(one.array)
            one.choose()
    assert [one.ids for one in mixed] == alone
    assert n_together > 0


QUANTISED = {"hidden": 256, "ffn": 512, "n_heads": 4, "n_kv_heads": 2, "head_dim": 64, "vocab": VOCAB}


@pytest.mark.parametrize(
    "dtype, kv",
    [
        ("Q4_K", "q8_0/wht4"),
        pytest.param("Q8_0", "f16", marks=pytest.mark.slow),
        pytest.param("BF16", "f16", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("model", ["attention", pytest.param("hybrid", marks=pytest.mark.slow)])
def test_company_changes_no_bit(
    pack: _engine.gpu.Pack, tmp_path: Path, model: str, dtype: str, kv: str, seed: int
) -> None:
    """Passes with one sequence, with any others, and with more than fit: the logits are bit-identical."""
    shape = Shape("qwen3", dtype, n_layers=2, **QUANTISED)
    if model == "hybrid":
        shape = Shape("qwen35", dtype, n_layers=2, recurrent=(True, False), d_state=64, n_v_heads=4, **QUANTISED)
    path = write_model(tmp_path / "model.gguf", shape)
    engine = open_engine(path, pack=pack, activations="int8", kv=kv, context=96)
    rng = np.random.default_rng(seed)
    prompts = [random_ids(n, VOCAB, seed + n).tolist() for n in (70, 1, 9, 64)]

    def written(groups: Iterator[list[int]], n: int) -> list[list[np.ndarray]]:
        """The logits before each token of n greedy ones of every sequence; groups: who shares the next pass."""
        sequences = [Sequence(engine, prompt, 0) for prompt in prompts]
        logits: list[list[np.ndarray]] = [[] for _ in sequences]
        while any(len(own) < n for own in logits):
            chosen = [i for i in next(groups) if len(logits[i]) < n]
            _engine.sync_together([sequences[i].session for i in chosen], [sequences[i].array for i in chosen])
            for i in chosen:
                logits[i].append(sequences[i].session.logits())
                sequences[i].ids.append(int(logits[i][-1].argmax()))
        return logits

    everyone = range(len(prompts))
    alone = written(cycle([[i] for i in everyone]), 3)
    mixed = written((rng.permutation(everyone)[: rng.integers(1, 5)].tolist() for _ in count()), 3)
    for want, got in zip(alone, mixed, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(want, got, strict=True))


@pytest.mark.first_case
@pytest.mark.parametrize("kv", ["f16", "f32", "f32/f16", "f16/f32"])
def test_attention_without_a_batched_kernel(pack: _engine.gpu.Pack, tmp_path: Path, kv: str, seed: int) -> None:
    """Heads of 32 over a context of two splits: a pass of two rows has the bits of passes of one."""
    engine = open_engine(
        write_model(tmp_path / "model.gguf", Shape("qwen3", n_layers=1, vocab=VOCAB)), pack=pack, kv=kv, context=256
    )
    ids = [random_ids(n, VOCAB, seed + n) for n in (140, 9)]
    alone = []
    for one in ids:
        session = _engine.Session(engine)
        session.sync(one[:-1])
        assert _engine.sync_together([session], [one]) == 1
        alone.append(session.logits())
    together = [_engine.Session(engine) for _ in ids]
    for session, one in zip(together, ids, strict=True):
        session.sync(one[:-1])
    assert _engine.sync_together(together, ids) == 2
    assert all(np.array_equal(session.logits(), want) for session, want in zip(together, alone, strict=True))


@pytest.mark.first_case
@pytest.mark.parametrize("path", ["graph", "megakernel"])
def test_passes_between_the_layers_of_a_prompt(pack: _engine.gpu.Pack, folder: Path, path: str, seed: int) -> None:
    """Between the layers of a prompt's chunk, another session decodes and a third prefills."""
    options = {"context": 384, "prefill_chunk": 288, "decode_path": path}
    engine = open_engine(folder / "hybrid.gguf", pack=pack, **options)
    long, short = random_ids(288, VOCAB, seed), random_ids(70, VOCAB, seed + 1)

    def alone(ids: np.ndarray) -> Sequence:
        one = Sequence(engine, ids.tolist(), 0)
        one.session.sync(one.array)
        return one

    want_long, want_short = alone(long).session.logits(), alone(short).session.logits()
    plain = alone(short[:9])
    want = plain.write()
    prompt, third = _engine.Session(engine), _engine.Session(engine)
    decoding = alone(short[:9])
    decoding.choose()

    def between() -> None:
        prompt.wait()
        decoding.session.sync(decoding.array)
        decoding.choose()
        third.sync(short)

    prompt.sync(long, between_layers=between)
    assert np.array_equal(prompt.logits(), want_long)
    assert np.array_equal(third.logits(), want_short)
    assert decoding.write() == want
