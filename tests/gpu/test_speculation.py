"""Speculative decoding on a device: drafted trees change no token, whatever decodes between them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drafts import SAMPLINGS, VOCAB, Tree, decode, random_tree
from engines import open_engine, random_ids
from lucebox import _engine, _kernels
from reference.gguf_files import Shape, write_model

N, N_PROMPT = 20, 53  # together more than a page of the KV cache
WIDE: dict[str, Any] = {"n_layers": 2, "hidden": 256, "ffn": 256, "n_heads": 4, "head_dim": 64}
SHAPES = {"hybrid": Shape("qwen35", recurrent=(True, False), d_state=64, **WIDE), "attention": Shape("qwen3", **WIDE)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("speculation")
    for name, shape in SHAPES.items():
        write_model(made / f"{name}.gguf", shape)
    return made


EVERYDAY = [
    ("hybrid", "greedy", False, "graph", "wht4/q4_0"),
    pytest.param("hybrid", "penalised", True, "megakernel", "q8_0/wht3", marks=pytest.mark.slow),
]
REST = [
    pytest.param(*case, marks=pytest.mark.slow)  # 6 s each on the simulator
    for case in product(SHAPES, ("greedy", "penalised"), (False, True), ("graph", "megakernel"), ("f32",))
]


@pytest.mark.parametrize("model, sampling, masked, path, kv", EVERYDAY + REST)
def test_trees_change_no_token(
    pack: _engine.gpu.Pack, folder: Path, model: str, sampling: str, masked: bool, path: str, kv: str, seed: int
) -> None:
    engine = open_engine(folder / f"{model}.gguf", pack=pack, draft="suffix", decode_path=path, kv=kv)
    prompt = random_ids(N_PROMPT, VOCAB, seed).tolist()
    options = SAMPLINGS[sampling]
    plain = decode(_engine.Session(engine), prompt, N, masked=masked, **options)
    rng = np.random.default_rng(seed)
    session = _engine.Session(engine)

    def draft(root: int) -> Tree:
        if rng.random() < 0.3:
            return [], []  # a plain step
        return random_tree(rng, plain[root + 1 : root + 12], int(rng.integers(1, 33)))

    assert decode(session, prompt, N, draft=draft, masked=masked, **options) == plain
    assert session.draft_counts["accepted"] > N / 8


@pytest.mark.first_case
@pytest.mark.parametrize("is_in_tree", [False, True])
def test_a_token_that_was_not_sampled(pack: _engine.gpu.Pack, folder: Path, is_in_tree: bool, seed: int) -> None:
    """The caller takes another token after the device has sampled further: one on another branch of the verified tree,
    or one with a separate tree."""
    engine = open_engine(folder / "attention.gguf", pack=pack, draft="suffix", decode_path="graph")
    prompt = random_ids(9, VOCAB, seed).tolist()
    first, second, third = decode(_engine.Session(engine), prompt, 3)
    other = (second + 1) % VOCAB
    texts = []
    for drafts in (False, True):
        session, sampler = _engine.Session(engine), _engine.Sampler(VOCAB)
        session.set_drafting(False)
        session.sync(np.array(prompt, np.int32))
        if drafts and is_in_tree:
            session.suggest(np.array([second, third, other], np.int32), [-1, 0, -1])
        ids = [*prompt, session.sample(sampler)]
        session.sync(np.array(ids, np.int32))
        if is_in_tree:
            assert session.sample(sampler) == second
        elif drafts:
            session.suggest(np.array([second, third], np.int32), [-1, 0])
        ids.append(other)
        for _ in range(3):
            session.sync(np.array(ids, np.int32))
            ids.append(session.sample(sampler))
        texts.append(ids)
        assert session.draft_counts["verified"] == int(drafts)
    assert texts[1] == texts[0] and texts[0][len(prompt)] == first


# --- a draft model, whose tree the device grows, verifies and walks before the host has seen it

FEW, CONTEXT = 23, 32  # a vocabulary of which random weights guess some tokens


@pytest.fixture(scope="module")
def with_block(tmp_path_factory: pytest.TempPathFactory) -> Path:
    heads = {"n_heads": 2, "n_kv_heads": 1, "n_v_heads": 2}
    shape = Shape("qwen35", n_layers=2, recurrent=(True, False), n_mtp=1, vocab=FEW, **heads)
    return write_model(tmp_path_factory.mktemp("block") / "mtp.gguf", shape)


def sampler_of(ids: list[int], masked: bool, **sampling: Any) -> _engine.Sampler:
    sampler = _engine.Sampler(FEW, **sampling)
    sampler.set_prompt(np.array(ids, np.int32))
    if masked:
        sampler.set_mask(np.array([(1 << FEW) - 1], np.uint32))
    return sampler


@pytest.mark.slow  # 4 s
@pytest.mark.parametrize("sampling", ["penalised", pytest.param("greedy", marks=pytest.mark.slow)])
def test_a_draft_ahead_is_the_draft_behind(pack: _engine.gpu.Pack, with_block: Path, sampling: str, seed: int) -> None:
    """Under a mask that allows all tokens the host walks, so no draft runs ahead: the same tokens, trees and paths. The
    context ends within a tree."""
    engine = open_engine(with_block, pack=pack, draft="mtp", draft_budget=19, context=CONTEXT)
    prompt = random_ids(9, FEW, seed).tolist()
    texts, counts = [], []
    for drafts, masked in ((False, False), (True, False), (True, True)):
        session, ids = _engine.Session(engine), list(prompt)
        session.set_drafting(drafts)
        sampler = sampler_of(ids, masked, **SAMPLINGS[sampling])
        while len(ids) < CONTEXT:
            session.sync(np.array(ids, np.int32))
            ids.append(session.sample(sampler))
        texts.append(ids)
        counts.append(session.draft_counts)
    assert texts[1] == texts[0] and texts[2] == texts[0]
    assert counts[1] == counts[2] and counts[1]["accepted"] > 0


def save(session: _engine.Session, _: _engine.Session) -> None:
    session.save()


def load(session: _engine.Session, _: _engine.Session) -> None:
    session.load(session.save())


# Events that end a walk. The first argument is the session that walks, the second another session of the engine.
ENDS: dict[str, Callable[[_engine.Session, _engine.Session], object]] = {
    "save": save,
    "load": load,
    "swap": lambda session, _: session.swap_out(),
    "fork": lambda session, other: other.fork(session),
    "fork back": lambda session, other: (other.fork(session), session.fork(other)),
    "share": lambda session, _: session.share_pages(0, 1),
    "read": lambda session, _: session.read_pages(0, 1),
    "recurrent": lambda session, _: session.read_recurrent(),
    "append": lambda session, _: session.append(np.array([1, 2], np.int32)),
    "rewind": lambda session, _: session.rewind(session.n_tokens),
}


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("how", "is_pass"),
    [
        pytest.param(how, is_pass, marks=[] if i % 4 == 2 * is_pass else pytest.mark.slow)  # 1.5 s each
        for i, how in enumerate(ENDS)
        for is_pass in (False, True)
    ],
)
def test_whatever_ends_the_walk_of_a_prompt(
    pack: _engine.gpu.Pack, folder: Path, how: str, is_pass: bool, seed: int
) -> None:
    """The last append of a prompt has one row and brings a tree, whose walk ends before the first token is sampled."""
    engine = open_engine(folder / "attention.gguf", pack=pack, draft="suffix", draft_budget=4)
    ids = np.resize(random_ids(4, VOCAB, seed), 65)
    first = []
    for is_ended in (False, True):
        session, other = _engine.Session(engine), _engine.Session(engine)
        sampler = _engine.Sampler(VOCAB, **SAMPLINGS["penalised"])
        sampler.set_prompt(ids)
        session.sync(ids[:64])
        if is_pass:
            assert _engine.sync_together([session], [ids]) > 1
        else:
            session.sync(ids)
        assert session.draft_counts["verified"] == 1
        if is_ended:
            ENDS[how](session, other)
            session.sync(ids)
        tokens = ids.tolist()
        for _ in range(3):
            session.sync(np.array(tokens, np.int32))
            tokens.append(session.sample(sampler))
        first.append(tokens)
    assert first[0] == first[1]


@pytest.mark.slow  # 2 s and more
@pytest.mark.parametrize(
    "draft, budget, steps",
    [
        ("mtp", 19, 12),
        pytest.param("mtp", 0, 60, marks=pytest.mark.slow),
        pytest.param("mtp+suffix", 0, 60, marks=pytest.mark.slow),
    ],
)
def test_whatever_interrupts_a_walk(
    pack: _engine.gpu.Pack, with_block: Path, draft: str, budget: int, steps: int, seed: int
) -> None:
    """Beside a session that decodes plainly: other tokens than the sampled ones, other samplers, masks, forced tokens,
    logits, a shorter timeline, other sessions, and all that ends a walk between sync() and sample()."""
    engine = open_engine(with_block, pack=pack, draft=draft, draft_budget=budget)
    rng = np.random.default_rng(seed)
    ids = random_ids(11, FEW, seed).tolist()
    sessions = [_engine.Session(engine) for _ in range(3)]
    sessions[1].set_drafting(False)
    samplers = [sampler_of(ids, False) for _ in range(2)]
    events = ("sampler", "mask", "forced", "other", "shorter", "logits", "session", *ENDS)
    for step in range(steps):
        tokens = []
        what = "nothing" if rng.random() < 0.6 else str(rng.choice(events))
        if what in ("sampler", "mask"):
            samplers = [sampler_of(ids, what == "mask") for _ in range(2)]
        if what == "shorter":
            ids = ids[: -int(rng.integers(1, 4))]
            samplers = [sampler_of(ids, False) for _ in range(2)]
        for session, sampler in zip(sessions, samplers, strict=False):
            session.sync(np.array(ids, np.int32))
            if what == "logits":
                assert np.isfinite(session.logits()).all()
            if what == "session":
                sessions[2].sync(np.array([*ids[:5], step % FEW], np.int32))
                sessions[2].sample(sampler_of(ids, False))
            if what in ENDS:
                ENDS[what](session, sessions[2])
                session.sync(np.array(ids, np.int32))
            if what == "forced":
                sampler.record_forced(ids[-1])
            tokens.append(session.sample(sampler))
        assert tokens[0] == tokens[1], (step, what)
        ids.append(int(rng.integers(FEW)) if what == "other" else tokens[0])
    assert sessions[0].draft_counts["verified"] > 0


@pytest.mark.slow  # 6 s; test_sample.py has the walk
def test_a_replay_accepts_what_the_histogram_says(pack: _engine.gpu.Pack, with_block: Path, seed: int) -> None:
    engine = open_engine(with_block, pack=pack, draft="mtp", draft_budget=3)
    session, ids = _engine.Session(engine), random_ids(9, FEW, seed).tolist()
    probe = _kernels.SessionProbe(session)
    probe.replay([1, 1, 1, 1], seed)
    probe.time_parts(True)
    sampler = sampler_of(ids, False)
    for _ in range(24):
        session.sync(np.array(ids, np.int32))
        ids.append(session.sample(sampler))
    lengths = session.accepted_lengths[:4]
    assert max(lengths) - min(lengths) <= 3 and sum(lengths) >= 8  # of some ten draws
    assert min(probe.part_seconds.values()) > 0
