"""Faults of the ranks of a tensor split: an error within two seconds, and the next request is right.

With --pack the tests run on the devices 0 and 1 of the pack's vendor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import gpu_packs
import numpy as np
import pytest
from device_faults import SHAPE, fails, wait_until_right, write
from engines import open_engine, random_ids
from lucebox import _engine
from lucebox._kernels.ops import RankExchange, hold_rank
from reference.gguf_files import write_model

MAILBOX_VALUES = 16384  # ops/all_reduce.h
LOST = r"\[all_reduce\] device {} .* sent nothing to device {} .* for {} s\. .* the next ones start {}"


@pytest.fixture(scope="module")
def packs(pack_folder: Path) -> list[_engine.gpu.Pack]:
    """The pack on two devices."""
    return gpu_packs.load_on_devices(pack_folder, 2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("faults") / "qwen3.gguf", SHAPE)


@pytest.mark.parametrize("link", ["auto", pytest.param("host", marks=pytest.mark.slow)])
@pytest.mark.parametrize("count", [64, MAILBOX_VALUES + 4])  # words; rows and flags
def test_values_that_get_lost(packs: list[_engine.gpu.Pack], count: int, link: str) -> None:
    exchange = RankExchange(packs, MAILBOX_VALUES + 4, 1.0, link)
    x = np.random.default_rng().standard_normal((2, count), dtype=np.float32)
    with exchange.hold(0) as held:

        def lose() -> None:
            held.erase_arrival()
            held.release()

        fails(lambda: exchange.sum(x), LOST.format(r"\d", r"\d", 1, "again"), lose)  # rank 1 may time out first
    assert np.array_equal(exchange.sum(x)[0], x[0] + x[1])


def test_a_rank_that_hangs_alone(packs: list[_engine.gpu.Pack]) -> None:
    """No peer waits for its values, but the host waits for its results."""
    exchange = RankExchange(packs, 64, 0.2)
    x = np.random.default_rng().standard_normal((2, 64), dtype=np.float32)
    with exchange.hold(1) as held:

        def release() -> None:  # the end of sum() frees memory, for which drivers wait
            time.sleep(1.5)
            held.release()

        fails(lambda: exchange.sum(x, absent=0), LOST.format(1, 0, r"0\.2", "once device 1"), release)
    fails(lambda: exchange.sum(x), LOST.format(1, 0, r"0\.2", "again"))  # an engine restarts the ranks
    assert np.array_equal(exchange.sum(x)[0], x[0] + x[1])


@pytest.mark.slow  # 100 s of waiting on the simulator, 8 s on GPUs
def test_requests(packs: list[_engine.gpu.Pack], model: Path) -> None:
    """A stream that hangs during a prompt, and for longer than the error takes; values of a step that get lost."""
    split = open_engine(model, pack=packs[0], others=packs[1:], split="tensor")
    is_sim = packs[0].target == "sim"
    limit_s, wait = (40.0, "20") if is_sim else (2.5, r"1\.5")
    prompt = random_ids(12, SHAPE.vocab).tolist()
    expected = write(_engine.Session(split), prompt, 6)
    other = _engine.Session(split)
    write(other, prompt, 2)
    for rank in (0, 1):
        session = _engine.Session(split)  # whose request needs no earlier work of the rank
        with hold_rank(split, rank):
            error = LOST.format(rank, 1 - rank, wait, f"once device {rank} .* has ended its work")
            assert fails(partial(session.sync, np.array(prompt, np.int32)), error) < limit_s
            error = rf"\[all_reduce\] device {rank} .* still has not ended the work of a request that failed"
            assert fails(partial(other.sync, np.array(prompt, np.int32)), error) < limit_s
        wait_until_right(other, prompt)
        assert write(other, prompt, 6) == expected
        assert write(session, prompt, 6) == expected

    ids, sampler = list(prompt), _engine.Sampler(SHAPE.vocab)

    def write_on() -> None:
        for _ in range(4):
            session.sync(np.array(ids, np.int32))
            ids.append(session.sample(sampler))

    session.reset()
    session.sync(np.array(ids, np.int32))
    ids.append(session.sample(sampler))
    with hold_rank(split, 0) as held:

        def lose() -> None:
            held.erase_arrival()
            held.release()

        assert fails(write_on, LOST.format(r"\d", r"\d", wait, "again"), lose) < limit_s
    for each in (other, session):
        assert write(each, prompt, 6) == expected


@pytest.mark.slow  # 10 s: a process, since a GPU is lost to the process whose kernel failed
@pytest.mark.parametrize("rank", [0, 1])
def test_a_kernel_that_fails(pack_folder: Path, packs: list[_engine.gpu.Pack], model: Path, rank: int) -> None:
    """All further requests fail, without a wait, and the process ends."""
    if packs[0].target == "sim":
        pytest.skip("a stray write of the simulator ends the process")
    command = [sys.executable, Path(__file__).with_name("crashed_rank.py"), pack_folder, model, str(rank)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for request in json.loads(done.stdout):
        assert request["error"] and request["s"] < 3, request
