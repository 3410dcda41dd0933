"""Speculative decoding: whatever tree is drafted, a session writes the tokens of plain decoding."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draft_pairs import FIRST, SECOND, TARGET
from drafts import SAMPLINGS, VOCAB, Tree, decode, random_tree, write
from engines import log_softmax, open_engine, random_ids
from lucebox import _engine, _kernels
from lucebox.errors import InvalidRequestError, UnsupportedError
from reference import draft_files
from reference.gguf_files import Shape, write_model

N = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("speculation")
    write_model(made / "hybrid.gguf", Shape(n_layers=3, recurrent=(True, False, True)))
    write_model(made / "attention.gguf", Shape("qwen3", n_layers=2))
    write_model(made / "target.gguf", TARGET)  # with a prediction block
    for name, shape in (("first", FIRST), ("second", SECOND)):
        draft_files.write_gguf(made / f"{name}.gguf", shape)
    return made


@pytest.fixture(params=["hybrid", "attention"])
def engine(request: pytest.FixtureRequest, folder: Path) -> _engine.Engine:
    return open_engine(folder / f"{request.param}.gguf", draft="suffix")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_trees_change_no_token(engine: _engine.Engine, sampling: dict[str, Any], masked: bool) -> None:
    prompt = random_ids(37, VOCAB).tolist()
    plain = decode(_engine.Session(engine), prompt, N, masked=masked, **sampling)
    rng = np.random.default_rng(5)
    session = _engine.Session(engine)

    def draft(root: int) -> Tree:
        return random_tree(rng, plain[root + 1 : root + 20], int(rng.integers(1, 64)))

    assert decode(session, prompt, N, draft=draft, masked=masked, **sampling) == plain
    counts = session.draft_counts
    assert counts["accepted"] > N / 4
    assert counts["verified"] + counts["accepted"] >= N - 1 - 20
    assert sum(n * trees for n, trees in enumerate(session.accepted_lengths)) <= counts["accepted"] + 20


# Paths of the DFlash drafts have up to 7 tokens, paths of the block up to 8.
@pytest.mark.parametrize(
    ("draft", "budget"), [*product(("first.gguf", "second.gguf"), (1, 7, 8, 63)), *product(("mtp",), (1, 8, 9, 63))]
)
def test_draft_models_of_random_weights_change_no_token(folder: Path, draft: str, budget: int) -> None:
    """Any number of nodes, to the end of the context."""
    name, n = draft if draft == "mtp" else str(folder / draft), 60
    engine = open_engine(folder / "target.gguf", context=20 + n, draft=name, draft_budget=budget)
    prompt = random_ids(20, VOCAB).tolist()
    plain, session = _engine.Session(engine), _engine.Session(engine)
    plain.set_drafting(False)
    want, got = write(plain, prompt, n + 1), write(session, prompt, n + 1)
    assert got == want and plain.draft_counts["verified"] == 0
    counts = session.draft_counts
    assert counts["verified"] > 20 and counts["drafted"] <= budget * counts["verified"]


@pytest.mark.slow  # 17 s each
@pytest.mark.parametrize("draft", ["first.gguf+suffix", "mtp"])
def test_ten_thousand_tokens(folder: Path, draft: str) -> None:
    """Plain steps, suffix drafts and model drafts in turn."""
    n = 10_000
    write_model(folder / "long.gguf", replace(TARGET, max_context=n + 100))
    name = draft if draft == "mtp" else str(folder / draft)
    engine = open_engine(folder / "long.gguf", context=n + 100, draft=name, draft_budget=0 if "suffix" in draft else 3)
    prompt = random_ids(20, VOCAB).tolist()
    plain, session = _engine.Session(engine), _engine.Session(engine)
    plain.set_drafting(False)
    assert write(session, prompt, n) == write(plain, prompt, n)
    assert session.draft_counts["verified"] > 20


def test_sampled_tokens_of_a_tree_have_the_distribution_of_the_target(engine: _engine.Engine) -> None:
    prompt, n, k = random_ids(5, VOCAB).tolist(), 800, 2
    plain = _engine.Session(engine)
    want: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):  # tokens
        longer = {}
        for path, share in want.items():
            plain.sync(np.array([*prompt, *path], np.int32))
            logits = plain.logits()
            top = np.argsort(-logits)[:k]
            longer |= {(*path, int(t)): share * p for t, p in zip(top, np.exp(log_softmax(logits[top])), strict=True)}
        want = longer
    # Below the first token: half of the second tokens, and below each of them one third token.
    seconds = sorted({path[1] for path in want})[::2]
    thirds = [next(path[2] for path in want if path[1] == second) for second in seconds]
    tree = [*seconds, *thirds], [-1] * len(seconds) + list(range(len(seconds)))
    session, seen = _engine.Session(engine), Counter[tuple[int, ...]]()

    def draft(i: int) -> Tree:
        return tree if i == 0 else ([], [])

    for seed in range(n):
        seen[tuple(decode(session, prompt, 3, draft=draft, temperature=1.0, top_k=k, seed=seed))] += 1
    assert session.draft_counts["accepted"] > n / 4
    assert seen.keys() <= want.keys()
    statistic = sum((seen[path] - n * p) ** 2 / (n * p) for path, p in want.items())
    assert statistic < 40  # of 7 degrees of freedom: one in a million


@pytest.mark.parametrize("length", [1, 2, 7, 63])
def test_chains_are_accepted_whole(engine: _engine.Engine, length: int) -> None:
    prompt = random_ids(20, VOCAB).tolist()
    plain = decode(_engine.Session(engine), prompt, N)
    session = _engine.Session(engine)

    def draft(root: int) -> Tree:
        tokens = plain[root + 1 : root + 1 + length]
        return tokens, list(range(-1, len(tokens) - 1))

    assert decode(session, prompt, N, draft=draft) == plain
    assert session.draft_counts["verified"] <= (N + length) // (length + 1) + 1
    assert session.tokens == prompt + plain[:-1]
    # 60 more tokens without drafts continue from the same state
    more = decode(_engine.Session(engine), prompt + plain, 60)
    assert decode(session, prompt + plain, 60) == more


def test_snapshots_and_forks_in_the_middle_of_a_tree(engine: _engine.Engine) -> None:
    prompt = random_ids(20, VOCAB).tolist()
    plain = decode(_engine.Session(engine), prompt, 40)
    session = _engine.Session(engine)
    tokens = plain[1:12]

    def draft(root: int) -> Tree:
        return (tokens, list(range(-1, 10))) if root == 0 else ([], [])

    assert decode(session, prompt, 6, draft=draft) == plain[:6]  # five of the eleven nodes are on the path
    saved = session.save()
    other = _engine.Session(engine)
    other.load(saved)
    assert other.tokens == session.tokens == prompt + plain[:5]
    for one in (session, other):
        assert decode(one, prompt + plain[:6], 30) == plain[6:36]
    # a prompt that leaves the tree's path inside it
    session = _engine.Session(engine)
    decode(session, prompt, 8, draft=draft)
    fork = [*prompt, *plain[:3], (plain[3] + 1) % VOCAB]
    assert decode(session, fork, 20) == decode(_engine.Session(engine), fork, 20)


def test_a_tree_ends_with_the_context(folder: Path) -> None:
    engine = open_engine(folder / "hybrid.gguf", context=64, draft="suffix")
    prompt = random_ids(40, VOCAB).tolist()
    plain = decode(_engine.Session(engine), prompt, 25)

    def draft(root: int) -> Tree:
        tokens = (plain[root + 1 :] + [1] * 60)[:60]
        return tokens, list(range(-1, 59))

    session = _engine.Session(engine)
    assert decode(session, prompt, 25, draft=draft) == plain
    assert len(session.tokens) == 64
    assert session.draft_counts["accepted"] >= 22


@pytest.mark.parametrize("context", [1, 2, 15, 16, 17])
def test_short_contexts(folder: Path, context: int) -> None:
    engine = _engine.Engine.open(str(folder / "hybrid.gguf"), context=context, suffix=True, threads=1)
    plain = _engine.Engine.open(str(folder / "hybrid.gguf"), context=context, threads=1)
    session = _engine.Session(engine)  # measures the costs of a step, where the context has room for them
    assert (engine.step_costs is None) == (context < 16)
    assert decode(session, [1], context) == decode(_engine.Session(plain), [1], context)


def test_a_replay_accepts_what_the_histogram_says(engine: _engine.Engine) -> None:
    prompt = random_ids(20, VOCAB).tolist()
    plain = decode(_engine.Session(engine), prompt, N)
    rng = np.random.default_rng(5)
    session = _engine.Session(engine)

    def draft(_: int) -> Tree:
        tokens = rng.integers(0, VOCAB, 12).tolist()
        return tokens, [-1, -1, 0, 0, 2, 2, 4, 4, 6, 6, 1, 1]  # the best path has rows 0, 2, 4, 6, 8

    probe = _kernels.SessionProbe(session)
    probe.replay([1, 0, 2, 0, 0, 0, 1], seed=3)  # a quarter of the trees would accept 6 tokens, and have 5
    decode(session, prompt, N, draft=draft)
    lengths = np.array(session.accepted_lengths[:7]) / sum(session.accepted_lengths)
    assert lengths == pytest.approx([0.25, 0, 0.5, 0, 0, 0.25, 0], abs=0.05)
    assert session.draft_counts["accepted"] == pytest.approx(2.25 * session.draft_counts["verified"], rel=0.05)

    probe.replay([])
    session.reset()
    assert decode(session, prompt, N, draft=draft) == plain
    for bad, message in (([0, 0], "is empty"), ([2, -1], "no negative"), ([1] * 65, "goes to 64")):
        with pytest.raises(InvalidRequestError, match=message):
            probe.replay(bad)


def test_the_parts_of_steps_are_timed(engine: _engine.Engine) -> None:
    session = _engine.Session(engine)
    probe = _kernels.SessionProbe(session)

    def draft(_: int) -> Tree:
        return [1, 2], [-1, 0]

    def run() -> dict[str, float]:
        session.reset()
        decode(session, [1, 2, 3], 10, draft=draft)
        return probe.part_seconds

    assert run() == {"draft": 0, "tree": 0, "verify": 0, "walk": 0}
    probe.time_parts(True)
    start = time.perf_counter()
    seconds = run()
    assert sum(seconds.values()) < time.perf_counter() - start
    assert min(seconds[part] for part in ("verify", "tree", "walk")) > 0
    assert any((timed := run())["verify"] > timed["tree"] for _ in range(10))  # other work may hold up a tree
    probe.time_parts(False)
    assert run()["verify"] == 0


def test_bad_drafts_are_refused(engine: _engine.Engine, folder: Path) -> None:
    session = _engine.Session(engine)
    with pytest.raises(InvalidRequestError, match="token 1 of the draft has parent 1"):
        session.suggest(np.array([1, 2], np.int32), [-1, 1])
    with pytest.raises(InvalidRequestError, match="at most 63 tokens"):
        session.suggest(np.zeros(64, np.int32), list(range(-1, 63)))
    with pytest.raises(InvalidRequestError, match="the vocabulary has"):
        session.suggest(np.array([VOCAB], np.int32), [-1])
    plain = _engine.Session(open_engine(folder / "hybrid.gguf"))
    with pytest.raises(UnsupportedError, match="opened without speculation"):
        plain.suggest(np.array([1], np.int32), [-1])
