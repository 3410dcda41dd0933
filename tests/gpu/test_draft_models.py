"""Draft models on a device against the fp64 reference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from draft_pairs import Pair, run
from lucebox import _engine
from reference import dflash, draft_files, gguf_files
from reference.decoder import Decoder
from reference.draft_files import DraftShape
from reference.gguf_files import Shape
from reference.mtp import Mtp

TARGET = Shape(
    "qwen35", n_layers=2, recurrent=(True, False), hidden=256, ffn=256, n_heads=4, head_dim=64, d_state=64, n_mtp=1
)
FIRST = DraftShape(
    hidden=256, ffn=256, head_dim=64, n_target_layers=2, taps=(1, 0), sliding=(True, False, True), window=10
)
APPENDS = ((13, 13), (-7, 0), (1, 1), (70, 70), (-23, 0))
SHAPES = {
    "first": FIRST,
    "both ways": replace(FIRST, is_causal=False, window=5),
    "sixteen rows, eight heads to a KV head": replace(FIRST, block=16, n_heads=8, n_kv_heads=1, sliding=(False,)),
    "second": replace(FIRST, is_second=True),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_files.write_model(tmp_path_factory.mktemp("draft") / "target.gguf", TARGET)


# 5 to 12 s each. The everyday case has every op of drafting; test_mtp has the plain layers.
@pytest.mark.slow  # 3 s; every day, tests/gpu/test_draft_device.py
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "second" else pytest.mark.slow) for name in SHAPES]
)
def test_dflash(pack: _engine.gpu.Pack, target: Path, tmp_path: Path, name: str) -> None:
    shape, named = SHAPES[name], draft_files.tensors(SHAPES[name])
    path = gguf_files.write(tmp_path / "draft.gguf", draft_files.gguf_fields(shape), draft_files.gguf_tensors(named))
    run(Pair(target, str(path), dflash.Dflash(shape.config, named), pack=pack), APPENDS)


def test_mtp(pack: _engine.gpu.Pack, target: Path) -> None:
    run(Pair(target, "mtp", Mtp(Decoder(target)), pack=pack), APPENDS)


def test_the_same_bits_again(pack: _engine.gpu.Pack, target: Path) -> None:
    first, second = (Pair(target, "mtp", Mtp(Decoder(target)), pack=pack) for _ in range(2))
    for pair in (first, second):
        pair.step(20, 20, np.random.default_rng(0))
    for a, b in zip(*(pair.drafting.propose(5, 4) for pair in (first, second)), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.slow  # 15 s: the rows of several windows
def test_drafts_over_windows(pack: _engine.gpu.Pack, target: Path, tmp_path: Path) -> None:
    """Prompts, trees and drafts, until pages of the windows are used again."""
    named = draft_files.tensors(FIRST)
    path = gguf_files.write(tmp_path / "draft.gguf", draft_files.gguf_fields(FIRST), draft_files.gguf_tensors(named))
    pair = Pair(target, str(path), dflash.Dflash(FIRST.config, named), pack=pack, context=512, sessions=1)
    rng = np.random.default_rng(0)
    for rows, n_kept in ((128, 128), (128, 128), (-23, 0), (64, 40), (100, 100)):
        pair.step(rows, n_kept, rng)
    pair.check(root=5)
    pair.step(-40, 0, rng)
    pair.check(root=5)
