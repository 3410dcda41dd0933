"""Rows of images and the positions after them on a device, beside the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tiny_vl
from engines import STEP_COSTS, largest_difference
from lucebox import _engine
from numpy.typing import NDArray
from PIL import Image
from tolerances import tolerance

PAD = 8194


def open_vision(folder: Path, pack: _engine.gpu.Pack | None = None, **options: Any) -> _engine.Engine:
    defaults = {"context": 256, "threads": 2, "activations": "f32", "kv": "f32", "prefill_chunk": 64, "sessions": 2}
    engine = _engine.Engine.open(
        str(tiny_vl.MODEL),
        pack=pack,
        mmproj=str(tiny_vl.MMPROJ),
        **(defaults | options),
    )
    engine.step_costs = STEP_COSTS
    return engine


def prompt_of(engine: _engine.Engine, folder: Path) -> tuple[NDArray[np.int32], list[int]]:
    """A prompt with two images, and the answer to it."""
    golden = np.load(folder / "golden.npz")
    files = ("02-number-96x64.png", "05-word-160x160.png")
    pixels = [np.asarray(Image.open(folder / "images" / file).convert("RGB")) for file in files]
    images = [engine.encode_image(file, rgb) for file, rgb in zip(files, pixels, strict=True)]
    ids = golden["p1_ids"].astype(np.int32)
    ids[ids == PAD] = np.concatenate([image.ids for image in images])
    return ids, [int(i) for i in golden["p1_output_ids"]]


def decoded(session: _engine.Session, ids: NDArray[np.int32], answer: list[int]) -> list[NDArray[np.float32]]:
    """Logits after the prompt and after each token of the answer, which the session must sample."""
    sampler, tokens, logits = _engine.Sampler(8448), list(ids), []
    for expected in answer:
        session.sync(np.asarray(tokens, np.int32))
        logits.append(session.logits())
        assert session.sample(sampler) == expected
        tokens.append(expected)
    return logits


SPREAD = 6
"""The standard deviation of these logits over the standard deviation in the models of the tolerances."""


def logits_of(engine: _engine.Engine, folder: Path, path: str = "") -> NDArray[np.float32]:
    ids, answer = prompt_of(engine, folder)
    session = _engine.Session(engine)
    logits = np.stack(decoded(session, ids, answer))
    assert session.decode_path.startswith(path)
    return logits


def test_steps_after_images(pack: _engine.gpu.Pack, data: Path) -> None:
    folder = data / "tiny-vl"
    on_device = logits_of(open_vision(folder, pack, decode_path="graph"), folder, "graph")
    difference = largest_difference(on_device, logits_of(open_vision(folder), folder))
    assert difference < SPREAD * tolerance("logits", "f32_device")


def test_the_megakernel_after_images(pack: _engine.gpu.Pack, data: Path) -> None:
    folder = data / "tiny-vl"
    graph, megakernel = (
        logits_of(open_vision(folder, pack, decode_path=path, activations="int8"), folder, path)
        for path in ("graph", "megakernel")
    )
    assert largest_difference(megakernel, graph) < SPREAD * tolerance("logits", "f32_device")


def test_trees_and_batches_after_images(pack: _engine.gpu.Pack, data: Path) -> None:
    folder = data / "tiny-vl"
    engine = open_vision(folder, pack, decode_path="graph", suffix=True)
    ids, answer = prompt_of(engine, folder)
    session, sampler, tokens = _engine.Session(engine), _engine.Sampler(8448), list(ids)
    while len(tokens) < len(ids) + len(answer):
        session.sync(np.asarray(tokens, np.int32))
        if len(tokens) == len(ids):
            session.suggest(np.array([answer[1], 9, *answer[2:4]], np.int32), [-1, -1, 0, 2])
        tokens.append(session.sample(sampler))
    assert tokens[len(ids) :] == answer and session.draft_counts["accepted"] >= 3

    sessions = [session, _engine.Session(engine)]
    samplers = [_engine.Sampler(8448) for _ in sessions]
    together = [list(ids), list(ids)]
    for _ in answer:
        _engine.sync_together(sessions, [np.asarray(one, np.int32) for one in together])
        for one, its, own in zip(together, sessions, samplers, strict=True):
            one.append(its.sample(own))
    assert [one[len(ids) :] for one in together] == [answer, answer]
