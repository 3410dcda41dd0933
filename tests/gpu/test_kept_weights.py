"""Weights in pinned memory: a later load copies them to the device and computes the same bits, without the file."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_packs
import numpy as np
import pytest
from engines import F32, logits_of, open_engine, random_ids
from lucebox import _engine
from lucebox.errors import InvalidRequestError, UnsupportedError
from reference.gguf_files import Shape, write_model, zero_ffn

HEADS = {"n_heads": 2, "n_kv_heads": 2, "head_dim": 64, "vocab": 96, "n_layers": 2}
HYBRID = Shape("qwen35", n_mtp=1, recurrent=(True, False), d_state=64, n_v_heads=2, **HEADS)
SHAPES = {
    "hybrid": HYBRID,
    "quantised": Shape("qwen3", "Q4_K", hidden=256, ffn=512, **HEADS | {"n_heads": 4}),
    "scaled": Shape("qwen3", "NVFP4", hidden=256, ffn=512, **HEADS),  # written to host memory first
    "mixture": Shape("qwen3moe", **HEADS),
}


@pytest.fixture(scope="module")
def packs(pack_folder: Path) -> list[_engine.gpu.Pack]:
    return gpu_packs.load_on_devices(pack_folder, 2)


def logits(engine: _engine.Engine) -> F32:
    return logits_of(engine, random_ids(20, 96), 7)


def kept_weights(engine: _engine.Engine) -> _engine.KeptWeights:
    """A complete copy, in a few slices of odd size."""
    kept = engine.keep_weights()
    slice_bytes = 2 * random.randrange(weight_bytes(engine) // 16, weight_bytes(engine) // 4) + 1
    while engine.keep_slice(kept, slice_bytes):
        assert not kept.is_complete
    return kept


def weight_bytes(engine: _engine.Engine) -> int:
    return sum(n_bytes for name, n_bytes, *_ in engine.plan["entries"] if "weights" in name)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "quantised" else [pytest.mark.slow]) for name in SHAPES]
)  # 11 s
def test_a_load_reads_kept_weights_in_place_of_the_file(pack: _engine.gpu.Pack, tmp_path: Path, name: str) -> None:
    path = write_model(tmp_path / "model.gguf", SHAPES[name])
    draft = "mtp" if SHAPES[name].n_mtp else "none"

    def opened(kept: _engine.KeptWeights | None = None) -> _engine.Engine:
        return open_engine(path, draft, pack=pack, kept=kept)

    engine = opened()
    want, kept = logits(engine), kept_weights(engine)
    assert kept.n_bytes == weight_bytes(engine) > 0 and kept.is_complete
    del engine
    zero_ffn(path)
    assert np.array_equal(logits(opened(kept)), want)
    assert np.array_equal(logits(opened(kept)), want)  # as often as one likes
    assert not np.array_equal(logits(opened()), want)
    assert opened(kept).has_weights_of(kept)
    os.utime(path)
    changed = opened(kept)
    assert not changed.has_weights_of(kept) and not np.array_equal(logits(changed), want)


@pytest.mark.parametrize("split", ["layer", pytest.param("tensor", marks=pytest.mark.slow)])  # 2 s each
def test_weights_on_several_devices(packs: list[_engine.gpu.Pack], tmp_path: Path, split: str) -> None:
    path = write_model(tmp_path / "model.gguf", HYBRID)
    draft = "mtp" if split == "tensor" else "none"  # layers on several devices have no draft models
    options: dict[str, Any] = {"draft": draft, "pack": packs[0], "others": packs[1:], "split": split}
    engine = open_engine(path, **options)
    want, kept = logits(engine), kept_weights(engine)
    del engine
    zero_ffn(path)
    assert np.array_equal(logits(open_engine(path, kept=kept, **options)), want)
    assert not np.array_equal(logits(open_engine(path, draft, kept=kept, pack=packs[0])), want)


OTHERS: dict[str, Callable[[Path, _engine.gpu.Pack], dict[str, Any]]] = {
    "another drafter": lambda path, pack: {"path": path, "draft": "none", "pack": pack},
    "the CPU": lambda path, pack: {"path": path, "draft": "mtp"},
    "another file": lambda path, pack: {"path": write_model(path.with_name("b.gguf"), HYBRID), "pack": pack},
}


@pytest.mark.first_case
@pytest.mark.parametrize("name", OTHERS)
def test_other_loads_read_the_file(pack: _engine.gpu.Pack, tmp_path: Path, name: str) -> None:
    path = write_model(tmp_path / "a.gguf", HYBRID)
    kept = kept_weights(open_engine(path, "mtp", pack=pack))
    zero_ffn(path)
    other = OTHERS[name](path, pack)
    assert np.array_equal(logits(open_engine(**other, kept=kept)), logits(open_engine(**other)))


def test_a_copy_grows_and_shrinks_by_slices(pack: _engine.gpu.Pack, tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", SHAPES["quantised"])
    other = open_engine(write_model(tmp_path / "other.gguf", SHAPES["quantised"]), pack=pack)
    engine = open_engine(path, pack=pack)
    want, kept = logits(engine), engine.keep_weights()
    assert kept.n_bytes == 0 and engine.has_weights_of(kept) and not kept.free_slice()
    size = weight_bytes(engine) // 3 + 1
    assert engine.keep_slice(kept, size) and engine.keep_slice(kept, size)
    with pytest.raises(InvalidRequestError, match="another engine's weights"):
        other.keep_slice(kept, size)
    assert kept.free_slice() and kept.n_bytes == size
    zero_ffn(path)
    changed = open_engine(path, pack=pack, kept=kept)  # reads the file, because the copy is incomplete
    assert changed.has_weights_of(kept) and not np.array_equal(logits(changed), want)
    del changed
    assert engine.keep_slice(kept, size) and not engine.keep_slice(kept, size) and kept.is_complete
    assert not engine.keep_slice(kept, size) and kept.n_bytes == weight_bytes(engine)
    assert np.array_equal(logits(open_engine(path, pack=pack, kept=kept)), want)
    assert kept.free_slice() and kept.free_slice() and not kept.free_slice() and kept.n_bytes == 0


def test_what_is_not_kept(pack: _engine.gpu.Pack, tmp_path: Path) -> None:
    path = write_model(tmp_path / "model.gguf", SHAPES["mixture"])
    with pytest.raises(UnsupportedError, match="weights on the CPU stay in the mapped file"):
        open_engine(path).keep_weights()
    with pytest.raises(UnsupportedError, match="experts in host memory are not kept"):
        open_engine(path, pack=pack, expert_slots=3).keep_weights()
