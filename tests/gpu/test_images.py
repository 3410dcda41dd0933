"""Rows of images and the positions after them on a device, beside the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpu_packs
import numpy as np
import pytest
import tiny_vl
from engines import STEP_COSTS, largest_difference
from gemma_images import golden_of, open_gemma
from lucebox import _engine
from lucebox.errors import InvalidRequestError
from numpy.typing import NDArray
from PIL import Image
from reference import convert
from tolerances import tolerance

PAD = 8194


def open_vision(pack: _engine.gpu.Pack | None = None, **options: Any) -> _engine.Engine:
    defaults: dict[str, Any] = {"context": 256, "threads": 2, "activations": "f32", "kv": "f32", "prefill_chunk": 64}
    defaults |= {"sessions": 2, "mmproj": str(tiny_vl.MMPROJ)}
    engine = _engine.Engine.open(str(tiny_vl.MODEL), pack=pack, **(defaults | options))
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


@pytest.mark.parametrize(
    "shape",
    [
        (64, 96),
        (32, 32),
        *(pytest.param(shape, marks=pytest.mark.slow) for shape in [(160, 160), (32, 416), (352, 64)]),
    ],
)
def test_the_tower_on_the_device(pack: _engine.gpu.Pack, data: Path, shape: tuple[int, int]) -> None:
    """Rows of an image beside the CPU's: of whole pages of patches, of parts of one, and of a row of patches."""
    rgb = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    on_device, on_cpu = (open_vision(where).encode_image("image", rgb).rows for where in (pack, None))
    assert largest_difference(on_device, on_cpu) < tolerance("vision", "f32_device")


@pytest.mark.parametrize(
    ("prompt", "files"),
    [("p2", ("04",)), pytest.param("p1", ("02", "05"), marks=pytest.mark.slow)],  # 2 s an image
)
def test_features_are_those_of_transformers(
    pack: _engine.gpu.Pack, data: Path, prompt: str, files: tuple[str, ...]
) -> None:
    """With the default activations: K and V of patches in f16, products of 8 and 16 bits."""
    folder, engine = data / "tiny-vl", open_vision(pack, activations="int8", kv="f16")
    golden = np.load(folder / "golden.npz")
    for k, name in enumerate(files):
        rgb = np.asarray(Image.open(next((folder / "images").glob(f"{name}-*"))).convert("RGB"))
        rows = engine.encode_image(name, rgb).rows
        difference = np.sqrt(np.mean((rows - golden[f"{prompt}_features{k}"]) ** 2))
        assert difference < tolerance("vision", "q8_0")


def test_large_images_pass_in_chunks(pack: _engine.gpu.Pack) -> None:
    """4224 patches: more than the buffers of a layer hold."""
    if pack.name.startswith("sim"):
        pytest.skip("takes an hour on the simulator")
    rgb = np.random.default_rng(0).integers(0, 256, (1056, 1024, 3), np.uint8)
    on_device, on_cpu = (open_vision(where).encode_image("image", rgb).rows for where in (pack, None))
    assert largest_difference(on_device, on_cpu) < tolerance("vision", "f32_device")


def test_the_tower_is_in_the_plan_of_its_device(pack: _engine.gpu.Pack) -> None:
    entries = {name: size for name, size, *_ in open_vision(pack).plan["entries"]}
    assert entries["vision tower"] > 4_000_000 and entries["image buffers"] > 10_000_000


def tower_elsewhere(place: str, pack_folder: Path, pack: _engine.gpu.Pack) -> dict[str, Any]:
    """Keywords of an engine on one device with its tower on another."""
    if place == "cpu":
        return {"pack": pack, "vision_on_cpu": True}
    packs = gpu_packs.load_on_devices(pack_folder, 2)
    return {"pack": packs[0], "vision_pack": packs[1]}


@pytest.mark.slow  # 2 to 10 s
@pytest.mark.parametrize("place", ["cpu", "gpu"])
def test_the_tower_on_a_device_of_its_own(pack_folder: Path, pack: _engine.gpu.Pack, data: Path, place: str) -> None:
    """Rows and logits have the bits of a tower there, and the model's plan has the tower's memory."""
    folder, where = data / "tiny-vl", tower_elsewhere(place, pack_folder, pack)
    apart = open_vision(**where)
    rgb = np.random.default_rng(0).integers(0, 256, (64, 96, 3), np.uint8)
    there = open_vision(None if place == "cpu" else where["vision_pack"])
    assert np.array_equal(apart.encode_image("image", rgb).rows, there.encode_image("image", rgb).rows)
    assert not [name for name, *_ in apart.plan["entries"] if name in ("vision tower", "image buffers")]
    vision = apart.plan["vision"]
    assert vision["place"] == there.plan["place"] and {name for name, *_ in vision["entries"]} == {
        "vision tower", "image buffers"}  # fmt: skip
    assert there.plan["vision"] is None
    ids, answer = prompt_of(apart, folder)
    decoded(_engine.Session(apart), ids, answer)


def test_a_tower_that_there_is_not(pack: _engine.gpu.Pack) -> None:
    with pytest.raises(InvalidRequestError, match=r"vision_device = cpu is for a vision tower, and .* without one"):
        open_vision(pack, vision_on_cpu=True, mmproj="")
    with pytest.raises(InvalidRequestError, match="a device is named twice"):
        open_vision(vision_on_cpu=True)


SPREAD = 6
"""The standard deviation of these logits over the standard deviation in the models of the tolerances."""


def logits_of(engine: _engine.Engine, folder: Path, path: str = "") -> NDArray[np.float32]:
    ids, answer = prompt_of(engine, folder)
    session = _engine.Session(engine)
    logits = np.stack(decoded(session, ids, answer))
    assert session.decode_path.startswith(path)
    return logits


@pytest.fixture(scope="module")
def of_graph(pack: _engine.gpu.Pack, data: Path) -> NDArray[np.float32]:
    """Logits of one device, by the graph."""
    return logits_of(open_vision(pack, decode_path="graph"), data / "tiny-vl", "graph")


@pytest.mark.slow  # 6 s
def test_steps_after_images(of_graph: NDArray[np.float32], data: Path) -> None:
    difference = largest_difference(of_graph, logits_of(open_vision(), data / "tiny-vl"))
    assert difference < SPREAD * tolerance("logits", "f32_device")


@pytest.mark.slow  # 9 s; every day, test_steps_after_images has the graph
def test_the_megakernel_after_images(pack: _engine.gpu.Pack, data: Path) -> None:
    folder = data / "tiny-vl"
    graph, megakernel = (
        logits_of(open_vision(pack, decode_path=path, activations="int8"), folder, path)
        for path in ("graph", "megakernel")
    )
    assert largest_difference(megakernel, graph) < SPREAD * tolerance("logits", "f32_device")


@pytest.mark.slow  # 14 s
def test_trees_and_batches_after_images(pack: _engine.gpu.Pack, data: Path) -> None:
    folder = data / "tiny-vl"
    engine = open_vision(pack, decode_path="graph", suffix=True)
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


@pytest.mark.slow  # 35 s: every day, test_gemma_images.py has the tower on the CPU
@pytest.mark.parametrize("name", ["gemma4_vl_a", "gemma4_vl_b"])
@pytest.mark.parametrize("chunk", [100, pytest.param(128, marks=pytest.mark.slow)])
def test_gemma_on_the_device(pack: _engine.gpu.Pack, data: Path, tmp_path: Path, name: str, chunk: int) -> None:
    """The tower's rows, and logits after images whose rows see each other (a) or earlier rows only (b), in F32."""
    golden = golden_of(data, name)
    model = convert.to_gguf(golden.folder, tmp_path / "model.gguf")
    mmproj = convert.to_projector(golden.folder, tmp_path / "mmproj.gguf")
    engine = open_gemma(model, str(mmproj), pack=pack, prefill_chunk=chunk, threads=2)
    engine.step_costs = STEP_COSTS
    images = golden.encoded(engine)
    for image, expected in zip(images, golden.features, strict=True):
        assert largest_difference(image.rows, expected) < tolerance("vision", "f32_device")
    ids, session = golden.ids_with(images), _engine.Session(engine)
    for end in (len(ids) - 5, len(ids)):
        session.sync(ids[:end])
        assert largest_difference(session.logits(), golden.logits[end - 1]) < tolerance("logits", "f32_device")


def test_gemma_in_bf16(pack: _engine.gpu.Pack, data: Path) -> None:
    """The checkpoint as it is: matrix units round x to 8 bits of mantissa."""
    golden = golden_of(data, "gemma4_vl_b")
    engine = open_gemma(golden.folder, pack=pack, activations="int8", kv="f16")
    for image, expected in zip(golden.encoded(engine), golden.features, strict=True):
        assert np.sqrt(np.mean((image.rows - expected) ** 2)) < tolerance("vision", "q8_0")


@pytest.mark.slow  # 16 s each
@pytest.mark.parametrize("split", ["layer", "tensor"])
def test_images_on_several_devices(pack_folder: Path, of_graph: NDArray[np.float32], data: Path, split: str) -> None:
    """The tower is on the first device. With layers, the bits of one device."""
    manifest, folder = gpu_packs.manifest_of(pack_folder), data / "tiny-vl"
    if len(_engine.gpu.devices(gpu_packs.BACKENDS[manifest["vendor"]])) < 2:
        pytest.skip("one device is here, and a split needs two")
    packs = [gpu_packs.load(pack_folder, manifest, index=i) for i in range(2)]
    both = open_vision(packs[0], others=packs[1:], split=split)
    names = [[name for name, *_ in part["entries"]] for part in both.plan["parts"]]
    assert ["vision tower" in part for part in names] == [True, False]
    got = logits_of(both, folder)
    if split == "layer":
        assert np.array_equal(got, of_graph)
    else:
        assert largest_difference(got, of_graph) < SPREAD * tolerance("logits", "f32_device")
