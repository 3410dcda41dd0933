"""Every plausible mistake about Qwen3.5 moves the logits so far that comparing with the reference would show it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import largest_difference, logits_of, open_engine, random_ids
from reference.decoder import INVISIBLE, MUTATIONS, Decoder
from reference.gguf_files import Shape, metadata, tensors, write, write_model
from tolerances import tolerance

EXACT = tolerance("logits", "f32")
SEEN = tolerance("logits", "seen") * EXACT


# 5 s: only a change of the golden file or of the reference can break them. The everyday case is the smallest mistake.
@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(m, marks=[] if m == "state rounded to f16" else pytest.mark.slow)
        for m in MUTATIONS
        if m not in INVISIBLE
    ],
)
def test_seen_on_the_golden_file(data: Path, mutation: str) -> None:
    arrays = np.load(data / "tiny" / "qwen35_a.npz")
    mistaken = Decoder(data / "tiny" / "qwen35_a.gguf", [mutation])
    assert largest_difference(mistaken.logits(arrays["ids"]), arrays["logits"]) > SEEN


@pytest.fixture(scope="module")
def faint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A model whose delta-net queries and keys are as short as the root of the eps, and some ids."""
    shape = Shape(n_layers=2, recurrent=(True, False))
    weights = tensors(shape)
    keys = 2 * shape.n_k_heads * shape.d_state
    conv = weights["blk.0.ssm_conv1d.weight"]
    assert isinstance(conv, np.ndarray)
    conv[:keys] *= 1e-3
    path = tmp_path_factory.mktemp("faint") / "faint.gguf"
    return write(path, metadata(shape), weights), random_ids(70, shape.vocab)


@pytest.mark.parametrize("mutation", sorted(INVISIBLE))
def test_invisible_ones_are_seen_on_short_keys(data: Path, faint: tuple[Path, np.ndarray], mutation: str) -> None:
    arrays = np.load(data / "tiny" / "qwen35_a.npz")
    ordinary = Decoder(data / "tiny" / "qwen35_a.gguf", [mutation])
    assert largest_difference(ordinary.logits(arrays["ids"]), arrays["logits"]) < SEEN, (
        "no longer invisible: drop it from the list"
    )
    path, ids = faint
    assert largest_difference(Decoder(path, [mutation]).logits(ids), Decoder(path).logits(ids)) > SEEN


def test_short_keys(faint: tuple[Path, np.ndarray], isa: str) -> None:
    path, ids = faint
    assert largest_difference(logits_of(open_engine(path, isa=isa), ids), Decoder(path).logits(ids)) < EXACT


def test_sections_are_seen_with_unequal_positions(data: Path) -> None:
    """Not on text, where the three positions are equal."""
    arrays = np.load(data / "tiny" / "qwen35_a_mrope.npz")
    model = Decoder(data / "tiny" / "qwen35_a.gguf")
    assert largest_difference(model.logits(arrays["ids"], arrays["pos"]), arrays["logits"]) < EXACT
    model.sections = []
    assert largest_difference(model.logits(arrays["ids"], arrays["pos"]), arrays["logits"]) > SEEN


@pytest.mark.parametrize("name", ["qwen3_a", "llama_a"])
def test_wrong_rope_pairs_are_seen_in_every_family(data: Path, name: str) -> None:
    arrays = np.load(data / "tiny" / f"{name}.npz")
    mistaken = Decoder(data / "tiny" / f"{name}.gguf", ["rope on the other pairs"])
    assert largest_difference(mistaken.logits(arrays["ids"]), arrays["logits"]) > SEEN


@pytest.mark.parametrize("scaling", [{"rope_factors": True}, {"linear_rope": 4.0}])
def test_rope_scaling_is_seen(tmp_path: Path, scaling: dict[str, Any]) -> None:
    shape = Shape("llama", n_layers=2)
    ids = random_ids(70, shape.vocab)
    plain, scaled = (Decoder(write_model(tmp_path / "m.gguf", replace(shape, **s))).logits(ids) for s in ({}, scaling))
    assert largest_difference(plain, scaled) > SEEN


def test_reference_matches_the_golden_files(data: Path) -> None:
    for name in ("qwen35_a", "qwen3_a", "llama_a"):
        arrays = np.load(data / "tiny" / f"{name}.npz")
        assert (
            largest_difference(Decoder(data / "tiny" / f"{name}.gguf").logits(arrays["ids"]), arrays["logits"]) < EXACT
        )
