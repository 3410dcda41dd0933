"""Speculative decoding: whatever tree is drafted, a session writes the tokens of plain decoding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import open_engine, random_ids
from lucebox import _engine
from lucebox.errors import InvalidRequestError, UnsupportedError
from reference.gguf_files import Shape, write_model

VOCAB = Shape().vocab
N = 120
Tree = tuple[list[int], list[int]]  # tokens and parents below the next token; -1: that token
Draft = Callable[[list[int]], Tree]  # from the tokens that plain decoding writes next, the root first

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "seed": 7},
    "penalised": {"temperature": 1.0, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2},
    "biased": {"temperature": 0.7, "typical_p": 0.9, "logit_bias": {3: 5.0, 8: -100.0}, "seed": 2},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("speculation")
    write_model(made / "hybrid.gguf", Shape(n_layers=3, recurrent=(True, False, True)))
    write_model(made / "attention.gguf", Shape("qwen3", n_layers=2))
    return made


@pytest.fixture(params=["hybrid", "attention"])
def engine(request: pytest.FixtureRequest, folder: Path) -> _engine.Engine:
    return open_engine(folder / f"{request.param}.gguf", draft="suffix")


def mask_after(ids: list[int]) -> np.ndarray:
    """A mask that depends on the tokens so far, as a grammar's does."""
    allowed = np.random.default_rng(sum(ids)).random(VOCAB) < 0.7
    bits = np.packbits(allowed, bitorder="little")
    return np.pad(bits, (0, -len(bits) % 4)).view(np.uint32)


def decode(
    session: _engine.Session,
    prompt: list[int],
    n: int,
    *,
    draft: Callable[[int], Tree] | None = None,
    masked: bool = False,
    **sampling: Any,
) -> list[int]:
    """n tokens after the prompt. `draft` makes the tree below token number i, before its sync()."""
    sampler = _engine.Sampler(VOCAB, **sampling)
    sampler.set_prompt(np.array(prompt, np.int32))
    ids = list(prompt)
    for i in range(n):
        if draft is not None and i > 0:
            tokens, parents = draft(i - 1)
            session.suggest(np.array(tokens, np.int32), parents)
        session.sync(np.array(ids, np.int32))
        if masked:
            sampler.set_mask(mask_after(ids))
        ids.append(session.sample(sampler))
    return ids[len(prompt) :]


def random_tree(rng: np.random.Generator, future: list[int], rows: int) -> Tree:
    """A tree of random shape. A part of it, from the top, is what plain decoding writes."""
    tokens: list[int] = []
    parents: list[int] = []
    right = -1  # the deepest node on the right path
    depth, wanted = 0, int(rng.integers(0, len(future) + 1))
    for i in range(rows):
        if depth < wanted and rng.random() < 0.5:
            tokens.append(future[depth])
            parents.append(right)
            right, depth = i, depth + 1
            continue
        parent = int(rng.integers(-1, i)) if i else -1
        token = int(rng.integers(0, VOCAB))
        if parent == right and depth < len(future) and token == future[depth]:
            right, depth = i, depth + 1
        tokens.append(token)
        parents.append(parent)
    return tokens, parents


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
    assert sum(n * trees for n, trees in enumerate(counts["by_length"])) <= counts["accepted"] + 20


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
