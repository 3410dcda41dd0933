"""Faults of the devices of a layer split: an error that names the device, and the next request is right.

With --pack the tests run on the first devices of the pack's vendor."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

import gpu_packs
import numpy as np
import pytest
from device_faults import SHAPE, fails, wait_until_right, write
from engines import open_engine, random_ids
from lucebox import _engine
from lucebox._kernels.driver import LinkChain, hold_device
from lucebox.errors import DeviceError
from reference.gguf_files import write_model

STUCK = r"\[device_link\] device {} .* made no progress for {}.* s\. .* the next ones start {}"


@pytest.fixture(scope="module")
def packs(pack_folder: Path) -> list[_engine.gpu.Pack]:
    return gpu_packs.load_on_devices(pack_folder, 3)


def chain_of(packs: list[_engine.gpu.Pack], timeout_s: float) -> LinkChain:
    devices = [_engine.gpu.Device(pack.device.vendor, pack.device.index) for pack in packs]
    return LinkChain(devices, 1024, timeout_s)


@pytest.mark.parametrize(
    "number",
    [1, *(pytest.param(number, marks=pytest.mark.slow) for number in (0, 2))],  # 3 s of waiting
)
def test_a_link_whose_device_hangs(packs: list[_engine.gpu.Pack], number: int) -> None:
    """Before it sends, between, or after it receives."""
    if number >= len(packs):
        pytest.skip(f"{len(packs)} devices are here")
    chain = chain_of(packs, 0.5)
    x = np.random.default_rng().standard_normal(1023, dtype=np.float32)
    with chain.hold(number):
        for _ in range(2):  # the second one sends nothing
            error = STUCK.format(number, r"0\.5", f"once device {number} .* has ended its work")
            assert fails(partial(chain.pass_on, x), error) < 5
        with pytest.raises(DeviceError, match=rf"device {number} .* still has not ended the work"):
            chain.restart()
    chain.restart()
    assert np.array_equal(chain.pass_on(x), x)


def test_slow_devices(packs: list[_engine.gpu.Pack]) -> None:
    """Each part ends within the time-out, and both together do not."""
    chain = chain_of(packs[:2], 1.0)
    x = np.random.default_rng().standard_normal(1024, dtype=np.float32)
    held = [chain.hold(0), chain.hold(1)]

    def release() -> None:
        for one in held:
            time.sleep(0.6)
            one.release()

    thread = threading.Thread(target=release)
    thread.start()
    assert np.array_equal(chain.pass_on(x), x)
    thread.join()


@pytest.mark.slow  # 90 s of waiting on the simulator, 15 s on GPUs
def test_requests(packs: list[_engine.gpu.Pack], tmp_path: Path) -> None:
    """A device that hangs during a prompt, or before the step of another session."""
    model = write_model(tmp_path / "model.gguf", SHAPE)
    split = open_engine(model, pack=packs[0], others=packs[1:2], split="layer")
    limit_s = 40.0 if packs[0].target == "sim" else 5.0
    prompt = random_ids(12, SHAPE.vocab).tolist()
    expected = write(_engine.Session(split), prompt, 6)
    other = _engine.Session(split)
    write(other, prompt, 2)
    for number in (0, 1):
        session = _engine.Session(split)
        with hold_device(split, number):
            error = STUCK.format(number, "", f"once device {number} .* has ended its work")
            assert fails(partial(session.sync, np.array(prompt, np.int32)), error) < limit_s
            error = rf"\[device_link\] device {number} .* still has not ended the work of a request that failed"
            assert fails(partial(other.sync, np.array(prompt, np.int32)), error) < limit_s
        wait_until_right(other, prompt)
        assert write(other, prompt, 6) == expected
        assert write(session, prompt, 6) == expected


@pytest.mark.slow  # 50 s of waiting on the simulator, 8 s on GPUs
def test_a_step(packs: list[_engine.gpu.Pack], tmp_path: Path) -> None:
    """A device that hangs while the host waits for a token."""
    model = write_model(tmp_path / "model.gguf", SHAPE)
    split = open_engine(model, pack=packs[0], others=packs[1:2], split="layer")
    prompt = random_ids(12, SHAPE.vocab).tolist()
    expected = write(_engine.Session(split), prompt, 6)
    session, sampler = _engine.Session(split), _engine.Sampler(SHAPE.vocab)
    session.sync(np.array(prompt, np.int32))
    ids = [*prompt, session.sample(sampler)]
    session.sync(np.array(ids, np.int32))

    def write_on() -> None:
        for _ in range(4):
            ids.append(session.sample(sampler))
            session.sync(np.array(ids, np.int32))

    with hold_device(split, 0):
        fails(write_on, STUCK.format(0, "", "once device 0 .* has ended its work"))
    wait_until_right(session, prompt)
    assert write(session, prompt, 6) == expected
