"""Speculative decoding on a device: drafted trees change no token, whatever decodes between them."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drafts import SAMPLINGS, VOCAB, Tree, decode, random_tree
from engines import open_engine, random_ids
from lucebox import _engine
from reference.gguf_files import Shape, write_model

N = 30
WIDE: dict[str, Any] = {"n_layers": 2, "hidden": 256, "ffn": 256, "n_heads": 4, "head_dim": 64}
SHAPES = {"hybrid": Shape("qwen35", recurrent=(True, False), d_state=64, **WIDE), "attention": Shape("qwen3", **WIDE)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("speculation")
    for name, shape in SHAPES.items():
        write_model(made / f"{name}.gguf", shape)
    return made


EVERYDAY = (("hybrid", "greedy", False, "graph"), ("hybrid", "penalised", True, "megakernel"))
CASES = [
    pytest.param(*case, marks=() if case in EVERYDAY else pytest.mark.slow)  # 6 s each on the simulator
    for case in product(SHAPES, ("greedy", "penalised"), (False, True), ("graph", "megakernel"))
]


@pytest.mark.parametrize("model, sampling, masked, path", CASES)
def test_trees_change_no_token(
    pack: _engine.gpu.Pack, folder: Path, model: str, sampling: str, masked: bool, path: str, seed: int
) -> None:
    engine = open_engine(folder / f"{model}.gguf", pack=pack, draft="suffix", decode_path=path)
    prompt = random_ids(37, VOCAB, seed).tolist()
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
