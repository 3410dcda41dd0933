"""Loading of weights to a device: for any split into ranges and any number of workers, the planes equal to_planes()."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from engines import logits_of, open_engine, random_ids
from lucebox import LLM, _engine, _kernels
from lucebox.generation import loading
from numpy.typing import NDArray
from project import ROOT
from reference.gguf_files import Shape, write_model
from reference.linear import BLOCK_TYPES, FP8, PLAIN_TYPES, block_size, random_weights

TYPES = (*PLAIN_TYPES, *BLOCK_TYPES, FP8)
SLOTS = [1, 3000, 1 << 20]  # a row each, some rows, whole matrices


class Matrices(NamedTuple):
    """The arguments of load_planes and the expected result."""

    weights: list[NDArray[np.uint8]]
    dtypes: list[str]
    n_out: list[int]
    n_in: list[int]

    def planes(self) -> list[NDArray[np.uint8]]:
        return [_kernels.weights.to_planes(*one) for one in zip(*self, strict=True)]


def matrices(seed: int, *each: tuple[str, int, int]) -> Matrices:
    """Random matrices; `each` is (type, rows, blocks per row)."""
    rng = np.random.default_rng(seed)
    n_in = [blocks * block_size(dtype)[0] for dtype, _, blocks in each]
    weights = [random_weights(dtype, rows * n, rng) for (dtype, rows, _), n in zip(each, n_in, strict=True)]
    return Matrices(weights, [one[0] for one in each], [one[1] for one in each], n_in)


def check(pack: _engine.gpu.Pack, given: Matrices, threads: int, slot_bytes: int) -> None:
    got = _kernels.weights.load_planes(pack, *given, threads=threads, slot_bytes=slot_bytes)
    for dtype, a, b in zip(given.dtypes, got, given.planes(), strict=True):
        assert np.array_equal(a, b), dtype


@pytest.mark.parametrize("slot_bytes", SLOTS)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_type(pack: _engine.gpu.Pack, seed: int, dtype: str, slot_bytes: int) -> None:
    check(pack, matrices(seed, (dtype, 1, 1), (dtype, 7, 67), (dtype, 33, 8), (dtype, 1, 300)), 1, slot_bytes)


@pytest.mark.parametrize("slot_bytes", SLOTS)
@pytest.mark.parametrize("threads", [2, 5, 40])
def test_several_workers(pack: _engine.gpu.Pack, seed: int, threads: int, slot_bytes: int) -> None:
    check(pack, matrices(seed, *[(dtype, 61, 9) for dtype in TYPES]), threads, slot_bytes)


def test_nothing_to_load(pack: _engine.gpu.Pack) -> None:
    assert _kernels.weights.load_planes(pack, [], [], [], []) == []


@pytest.mark.parametrize("threads", [1, 3])
def test_progress_ends_with_everything(pack: _engine.gpu.Pack, seed: int, threads: int) -> None:
    given = matrices(seed, ("Q4_K", 50, 3), ("BF16", 9, 40))
    total = sum(len(w) for w in given.weights)
    seen: list[tuple[int, int]] = []
    _kernels.weights.load_planes(
        pack, *given, threads=threads, slot_bytes=1, progress_bytes=1000, progress=lambda *args: seen.append(args)
    )
    done = [at for at, _ in seen]
    assert seen[-1] == (total, total) and {of for _, of in seen} == {total}
    assert all(b - a >= 1000 for a, b in pairwise(done[:-1]))
    if threads == 1:  # others may do all the work of the thread that reports
        assert all(b - a < 1000 + 3 * 144 for a, b in pairwise([0, *done]))


@pytest.mark.parametrize("threads", [1, 3])
def test_a_caller_who_gives_up_ends_the_load(pack: _engine.gpu.Pack, seed: int, threads: int) -> None:
    seen: list[int] = []

    def stop(done: int, total: int) -> None:
        seen.append(done)
        raise KeyboardInterrupt

    given = matrices(seed, ("Q6_K", 400, 2))
    with pytest.raises(KeyboardInterrupt):
        _kernels.weights.load_planes(pack, *given, threads=threads, slot_bytes=1, progress_bytes=1, progress=stop)
    assert len(seen) == 1
    check(pack, given, threads, 1)


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_is_the_same_with_any_number_of_workers(pack: _engine.gpu.Pack, tmp_path: Path, tied: bool) -> None:
    shape = Shape("llama", n_layers=2, hidden=256, ffn=512, n_heads=4, head_dim=64, tied=tied, dtype="Q4_K")
    path = write_model(tmp_path / "model.gguf", shape)
    seen: list[tuple[int, int]] = []
    engines = [
        open_engine(path, pack=pack, threads=threads, progress=lambda *args: seen.append(args)) for threads in (1, 4)
    ]
    ids = random_ids(9, shape.vocab)
    first, second = (logits_of(engine, ids) for engine in engines)
    assert np.array_equal(first, second)
    assert len(seen) == 2 and all(done == total > 0 for done, total in seen)


@pytest.mark.parametrize("tied", [False, True])
def test_the_table_of_addresses(pack: _engine.gpu.Pack, tmp_path: Path, tied: bool) -> None:
    """Every matrix has a distinct slot and address; the device's table equals the host's. A tied head has no slot."""
    shape = Shape("llama", n_layers=2, hidden=256, ffn=512, n_heads=4, head_dim=64, tied=tied, dtype="Q4_K")
    host, device = _kernels.weights.weight_table(pack, str(write_model(tmp_path / "model.gguf", shape)))
    assert device == host
    assert len(set(host)) == len(host) == 1 + (not tied) + 7 * shape.n_layers
    assert 0 not in host


def test_an_interrupted_load_leaves_nothing(pack: _engine.gpu.Pack, data: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    simulator = _engine.gpu.Device("sim", 0)
    before = simulator.memory()
    with pytest.raises(KeyboardInterrupt):
        open_engine(data / "tiny" / "qwen35_a.gguf", pack=pack, progress=stop)
    assert simulator.memory() == before


def test_who_opens_a_model_sees_its_weights_load(pack: _engine.gpu.Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "open_pack", lambda selection: pack)
    seen: list[tuple[str, int, int]] = []
    model = ROOT / "models" / "tiny-hybrid" / "lucebox_tiny" / "tiny-hybrid.Q8_0.gguf"
    # Drafts would be measured at load, which takes long on the simulator.
    with LLM(model, context=64, device="cpu", draft="none", progress=lambda *args: seen.append(args)) as llm:
        assert seen[-1][0] == "loading weights" and 0 < seen[-1][1] == seen[-1][2] <= llm.info.file_bytes
