"""Decode steps of a tensor split as one launch per rank: the logits and tokens of the split's graphs, the same bits on
every rank.

With --pack the tests run on the devices 0, 1, ... of the pack's vendor, as many as the machine has."""

from __future__ import annotations

import threading
from functools import cache
from pathlib import Path
from typing import Any

import gpu_packs
import numpy as np
import numpy.typing as npt
import pytest
from drafts import SAMPLINGS
from engines import largest_difference, open_engine, random_ids
from lucebox import _engine, _kernels
from lucebox._kernels.driver import delay_sim_device
from lucebox._kernels.ops import hold_rank
from lucebox.errors import DeviceError, UnsupportedError
from reference.gguf_files import Shape, write_model
from tolerances import tolerance

VOCAB = 131
HEADS = {"n_heads": 8, "n_kv_heads": 4, "head_dim": 64, "vocab": VOCAB, "ffn": 160}
RECURRENT = {"recurrent": (True, False, True), "d_state": 64, "n_k_heads": 4, "n_v_heads": 8}
QUANTISED = {"hidden": 256, "ffn": 1024, "n_heads": 8, "n_kv_heads": 4, "head_dim": 64, "vocab": 160}
SHAPES = {
    "qwen35": Shape("qwen35", n_layers=3, **RECURRENT, **HEADS),
    "qwen3": Shape("qwen3", "Q8_0", n_layers=2, **QUANTISED),
    "packed": Shape("qwen3", "Q4_K", n_layers=2, **QUANTISED),
    "llama": Shape("llama", n_layers=2, tied=True, **HEADS),
    "qwen3moe": Shape("qwen3moe", n_layers=2, **HEADS, expert_ffn=128, shared_ffn=128),
}
EXACT = tolerance("logits", "f32_device")
F32 = npt.NDArray[np.float32]


@pytest.fixture(scope="module", params=gpu_packs.MEGAKERNELS)
def packs(request: pytest.FixtureRequest, pack_folder: Path) -> list[_engine.gpu.Pack]:
    """The pack on up to four devices, with one kind of megakernel."""
    return gpu_packs.with_megakernels_on_devices(pack_folder, request.param, 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@cache
def written(folder: Path, name: str) -> Path:
    return write_model(folder / f"{name}.gguf", SHAPES[name])


def open_split(packs: list[_engine.gpu.Pack], path: Path, way: str, n: int = 2, **options: Any) -> _engine.Engine:
    if n > len(packs):
        pytest.skip(f"{len(packs)} devices are here")
    return open_engine(path, pack=packs[0], others=packs[1:n], **{"split": "tensor", "decode_path": way, **options})


def write(
    engine: _engine.Engine, prompt: list[int], n: int, given: list[int] | None = None, **sampling: Any
) -> tuple[list[int], F32, str]:
    """n tokens after the prompt, the logits before each but the first, and the session's path. given: the tokens to go
    on with; None: the chosen ones."""
    session, sampler = _engine.Session(engine), _engine.Sampler(engine.info["vocab"], **sampling)
    ids, chosen, logits = list(prompt), [], []
    sampler.set_prompt(np.array(ids, np.int32))
    for i in range(n):
        session.sync(np.array(ids, np.int32))
        if i > 0:
            ranks = _kernels.SessionProbe(session).rank_logits()
            assert all(np.array_equal(rank, ranks[0]) for rank in ranks)
            logits.append(ranks[0])
        chosen.append(session.sample(sampler))
        ids.append(chosen[-1] if given is None else given[i])
    return chosen, np.array(logits, np.float32), session.decode_path.split("_")[0]


def check_against_graphs(
    packs: list[_engine.gpu.Pack],
    path: Path,
    seed: int,
    limit: float = EXACT,
    n: int = 2,
    sampling: str = "greedy",
    **options: Any,
) -> None:
    """Quantised x, whose rounded codes may be neighbours, may change a token, so only the logits are compared."""
    prompt, sampler = random_ids(20, 131, seed).tolist(), SAMPLINGS[sampling]
    graph = write(open_split(packs, path, "graph", n, **options), prompt, 6, **sampler)
    mega = write(open_split(packs, path, "megakernel", n, **options), prompt, 6, graph[0], **sampler)
    assert (graph[2], mega[2]) == ("graph", "megakernel")
    assert largest_difference(graph[1], mega[1]) < limit
    assert limit > EXACT or graph[0] == mega[0]


@pytest.mark.first_case
@pytest.mark.parametrize("sampling", ["greedy", "drawn"])
@pytest.mark.parametrize("n", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
def test_recurrent(packs: list[_engine.gpu.Pack], folder: Path, n: int, sampling: str, seed: int) -> None:
    check_against_graphs(packs, written(folder, "qwen35"), seed, EXACT, n, sampling)


@pytest.mark.slow  # 3 s each; every day, test_recurrent
def test_llama(packs: list[_engine.gpu.Pack], folder: Path, seed: int) -> None:
    check_against_graphs(packs, written(folder, "llama"), seed)


@pytest.mark.first_case
@pytest.mark.parametrize("sampling", ["drawn", "greedy"])
def test_through_host_memory(packs: list[_engine.gpu.Pack], folder: Path, sampling: str, seed: int) -> None:
    check_against_graphs(packs, written(folder, "qwen35"), seed, sampling=sampling, link="host")


@pytest.mark.parametrize("weights", ["packed", pytest.param("qwen3", marks=pytest.mark.slow)])
def test_quantised(packs: list[_engine.gpu.Pack], folder: Path, weights: str, seed: int) -> None:
    limit = tolerance("logits", "half_device")
    check_against_graphs(packs, written(folder, weights), seed, limit, activations="int8", kv="f16")


@pytest.mark.slow  # 3 s
def test_uneven_shares(packs: list[_engine.gpu.Pack], folder: Path, seed: int) -> None:
    check_against_graphs(packs, written(folder, "qwen35"), seed, split="3,1")


@pytest.mark.slow  # 4 s
def test_two_sessions_in_turn(packs: list[_engine.gpu.Pack], folder: Path, seed: int) -> None:
    """Launches of both are in one order on every rank, and a token that is dropped is never taken."""
    engine = open_split(packs, written(folder, "qwen35"), "megakernel")
    prompts = [random_ids(n, VOCAB, seed + n).tolist() for n in (9, 14)]
    expected = [prompt + write(engine, prompt, 6)[0] for prompt in prompts]
    sessions = [_engine.Session(engine) for _ in prompts]
    texts = [list(prompt) for prompt in prompts]
    samplers = [_engine.Sampler(VOCAB) for _ in prompts]
    for step in range(6):
        for i, (session, ids) in enumerate(zip(sessions, texts, strict=True)):
            session.sync(np.array(ids, np.int32))
            if step == 3:
                samplers[i] = _engine.Sampler(VOCAB)  # another sampler drops what the first has chosen ahead
            ids.append(session.sample(samplers[i]))
    assert texts == expected


@pytest.mark.first_case
def test_a_late_rank_changes_nothing(packs: list[_engine.gpu.Pack], folder: Path) -> None:
    if packs[0].target != "sim":
        pytest.skip("only the simulator delays a device")
    engine = open_split(packs, written(folder, "qwen35"), "megakernel")
    prompt = random_ids(12, VOCAB).tolist()
    expected = write(engine, prompt, 4)
    delay_sim_device(packs[1].device.index, 0.1)
    late = write(engine, prompt, 4)
    assert late[0] == expected[0] and np.array_equal(late[1], expected[1])


@pytest.mark.slow  # 8 s: each rank's launch waits for 2 s
def test_a_rank_that_hangs(packs: list[_engine.gpu.Pack], folder: Path) -> None:
    """The request fails, and the next one is right: its steps are graphs."""
    engine = open_split(packs, written(folder, "qwen35"), "megakernel")
    prompt = random_ids(12, VOCAB).tolist()
    expected = prompt + write(engine, prompt, 4)[0]
    session, sampler, ids = _engine.Session(engine), _engine.Sampler(VOCAB), np.array(prompt, np.int32)
    session.sync(ids)
    ids = np.append(ids, np.int32(session.sample(sampler)))
    with hold_rank(engine, 0) as held:
        threading.Timer(3, held.release).start()
        with pytest.raises(DeviceError, match="waited 2 s for the other blocks, or for another device, to finish"):
            for _ in range(3):
                session.sync(ids)
                ids = np.append(ids, np.int32(session.sample(sampler)))
    for again in (session, _engine.Session(engine)):
        text = list(prompt)
        for _ in range(4):
            again.sync(np.array(text, np.int32))
            text.append(again.sample(sampler))
        assert text == expected
    assert session.decode_path.startswith("graph, because a block of the megakernel waited")
    assert again.decode_path.startswith("megakernel")


def test_refusals(packs: list[_engine.gpu.Pack], folder: Path) -> None:
    with pytest.raises(UnsupportedError, match="takes no mixture of experts that is split by tensors"):
        open_split(packs, written(folder, "qwen3moe"), "megakernel")
