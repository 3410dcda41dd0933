"""Exchanges between ranks: every rank gets the same bits, summed in the order of the ranks, and nothing hangs.

With --pack the tests run on the devices 0, 1, ... of the pack's vendor, as many as the machine has."""

from __future__ import annotations

import time
from pathlib import Path

import gpu_packs
import numpy as np
import pytest
from build_sim import build_sim
from lucebox import _engine
from lucebox._kernels.driver import corrupt_sim_link, delay_sim_device
from lucebox._kernels.ops import RankExchange
from lucebox.errors import DeviceError, UnsupportedError
from numpy.typing import NDArray

F32 = NDArray[np.float32]
MAILBOX_VALUES = 16384  # ops/all_reduce.h
TIMEOUT_S = 30.0  # long enough for a busy machine that simulates


@pytest.fixture(scope="module")
def packs(pack_folder: Path) -> list[_engine.gpu.Pack]:
    """The pack on up to four devices."""
    return gpu_packs.load_on_devices(pack_folder, 4)


def values(n_ranks: int, count: int, seed: int = 0) -> F32:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((n_ranks, count)) * np.exp(rng.standard_normal((n_ranks, count)))).astype(np.float32)


def in_rank_order(x: F32, add: F32 | None = None) -> F32:
    total = x[0].copy()
    for row in x[1:]:
        total += row
    return total if add is None else add + total


@pytest.mark.parametrize("n_ranks", [2, 3, 4])
def test_sums(packs: list[_engine.gpu.Pack], n_ranks: int) -> None:
    """Words, rows and parts, with and without a residual, many times through the same mailboxes."""
    if n_ranks > len(packs):
        pytest.skip(f"{len(packs)} devices are here")
    exchange = RankExchange(packs[:n_ranks], MAILBOX_VALUES + 4, TIMEOUT_S)
    add = values(1, 3 * MAILBOX_VALUES, 9)[0]
    for round_, count in enumerate((4, 512, 512, MAILBOX_VALUES + 4, 4, 1028, MAILBOX_VALUES, 2 * MAILBOX_VALUES + 12)):
        x = values(n_ranks, count, round_)
        own = add[:count] if round_ % 2 else None
        for rank, got in enumerate(exchange.sum(x, own)):
            assert np.array_equal(got, in_rank_order(x, own)), f"{count} values on rank {rank}"


def test_columns_side_by_side(packs: list[_engine.gpu.Pack]) -> None:
    exchange = RankExchange(packs, 6000, TIMEOUT_S)
    rng = np.random.default_rng(1)
    for rows, width in ((1, 1), (1, 1025), (3, 40), (5, 3001)):  # the last in parts
        x = [rng.standard_normal((rows, width + rank), dtype=np.float32) for rank in range(len(packs))]
        for got in exchange.gather(x):
            assert np.array_equal(got, np.concatenate(x, axis=1))


def test_a_late_rank_changes_nothing(packs: list[_engine.gpu.Pack]) -> None:
    exchange = RankExchange(packs[:2], MAILBOX_VALUES + 4, TIMEOUT_S)
    for count in (64, MAILBOX_VALUES + 4):
        x = values(2, count)
        assert np.array_equal(exchange.sum(x, late=0, delay_s=0.05)[1], in_rank_order(x))


@pytest.mark.parametrize("count", [64, MAILBOX_VALUES + 4])
def test_a_missing_rank_is_an_error(packs: list[_engine.gpu.Pack], count: int) -> None:
    """Within the time-out, and the next exchange is right."""
    exchange = RankExchange(packs[:2], MAILBOX_VALUES + 4, 1.0)
    x = values(2, count)
    start = time.monotonic()
    with pytest.raises(DeviceError, match=r"\[all_reduce\] device 1 .* sent nothing to device 0 .* for 1 s"):
        exchange.sum(x, absent=1)
    assert time.monotonic() - start < 10
    assert np.array_equal(exchange.sum(x)[0], in_rank_order(x))


def test_host_memory_where_there_are_no_peers() -> None:
    exchange = RankExchange(sim_packs(3, 4), MAILBOX_VALUES + 4, TIMEOUT_S)
    assert exchange.links.startswith('host: device 3 "lucebox simulator" (sim) has no peer access to device 4')
    for count in (64, MAILBOX_VALUES + 4):
        x = values(2, count)
        assert np.array_equal(exchange.sum(x)[1], in_rank_order(x))


def test_a_link_that_answers_late_is_not_used() -> None:
    """The proof at the start fails, so all values go through host memory."""
    delay_sim_device(1, 1.5)
    exchange = RankExchange(sim_packs(), 64, 1.0)
    assert exchange.links == "host: values sent between the devices arrive wrong or late"
    x = values(2, 64)
    assert np.array_equal(exchange.sum(x)[0], in_rank_order(x))


def test_link(packs: list[_engine.gpu.Pack]) -> None:
    exchange = RankExchange(packs[:2], MAILBOX_VALUES + 4, TIMEOUT_S, "host")
    assert exchange.links == "host: link = host"
    for count in (64, MAILBOX_VALUES + 4):
        x = values(2, count)
        assert np.array_equal(exchange.sum(x)[1], in_rank_order(x))
    assert exchange.time_us(64, 2, 1) > 0
    with pytest.raises(UnsupportedError, match=r"link = peer: device 3 .* has no peer access to device 4"):
        RankExchange(sim_packs(3, 4), 64, TIMEOUT_S, "peer")


def sim_packs(*devices: int) -> list[_engine.gpu.Pack]:
    manifest = gpu_packs.manifest_of(build_sim())
    return [gpu_packs.load(build_sim(), manifest, index=index) for index in devices or (0, 1)]


def test_a_link_that_corrupts_one_word_in_10_000_is_not_used() -> None:
    """As drivers do that allow peer access on hardware without it."""
    corrupt_sim_link(1, flipped=1, every=10_000, n_wrong=1)
    exchange = RankExchange(sim_packs(), MAILBOX_VALUES + 4, TIMEOUT_S)
    assert exchange.links == "host: values sent between the devices arrive wrong or late"
    x = values(2, MAILBOX_VALUES)
    assert np.array_equal(exchange.sum(x)[0], in_rank_order(x))


def test_no_exchange_without_a_path_that_answers() -> None:
    corrupt_sim_link(1, flipped=1, every=10, n_wrong=1 << 30)
    try:
        with pytest.raises(DeviceError, match=r"exchange through pinned host memory arrive wrong or late\. Check"):
            RankExchange(sim_packs(), 64, TIMEOUT_S)
    finally:
        corrupt_sim_link(1, flipped=0, every=1, n_wrong=0)


def test_a_wrong_tag_is_an_error() -> None:
    """A value whose tag does not arrive counts as missing, and the next exchange is right."""
    exchange, x = RankExchange(sim_packs(), 64, 1.0), values(2, 64)
    corrupt_sim_link(1, flipped=1 << 32, every=1, n_wrong=1)
    with pytest.raises(DeviceError, match=r"\[all_reduce\] device 1 .* sent nothing to device 0 .* for 1 s"):
        exchange.sum(x)
    assert np.array_equal(exchange.sum(x)[0], in_rank_order(x))
