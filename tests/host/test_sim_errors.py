"""Errors that sim reports for wrong kernels and launches; every message names the kernel and the thread."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import sim_pack
from sim_pack import ROOT, Shape, SimPack


@pytest.fixture
def sim() -> SimPack:
    return sim_pack.pack()


def run(sim: SimPack, kernel: str, shape: Shape, n: int = 0) -> tuple[str, np.ndarray]:
    given = np.zeros(4096, np.float32)
    start = -given.ctypes.data % 16 // 4
    out, counter = np.zeros(4096, np.float32), np.zeros(1, np.uint32)
    return sim.run(kernel, shape, given[start:], out, counter, n), out


def threads(n: int, blocks: int = 1, shared_bytes: int = 0, cooperative: bool = False) -> Shape:
    return Shape((blocks, 1, 1), (n, 1, 1), shared_bytes, cooperative)


@pytest.mark.parametrize(
    ("kernel", "shape", "message"),
    [
        (
            "race_kernel",
            threads(64),
            r"thread 32: race: writes values\[32\] \(.*wrong.cpp:\d+\), which thread 31 read with",
        ),
        ("write_race_kernel", threads(64), r"thread 1: race: writes values\[2\] .* thread 0 wrote"),
        ("read_then_write_race_kernel", threads(64, shared_bytes=256), r"race: writes byte \d+ of the dynamic"),
        ("vector_race_kernel", threads(64), r"thread 1: race: writes values\[1\] .* thread 0 read"),
        ("piece_read_race_kernel", threads(32), r"thread 1: race: reads values\[0\] .* thread 0 wrote"),
        ("warp_race_kernel", threads(64), r"thread 32: race: writes values\[32\] .*, which thread 0 read"),
        ("copy_race_kernel", threads(32), r"thread 1: race: writes values\[4\] .* thread 0 read"),
        ("static_bounds_kernel", threads(128), r"thread 100: index 100 of the shared array values, which has 100"),
        ("below_bounds_kernel", threads(32), r"thread 0: index -1 of the shared array values, which has 100"),
        ("dynamic_bounds_kernel", threads(64, shared_bytes=252), r"thread 63: index 63 of the shared array dynamic"),
        ("pointer_bounds_kernel", threads(32), r"store of 16 bytes at .* is outside of the block's shared arrays"),
        ("too_much_shared_kernel", threads(32), r"array second .* of 32768 bytes does not fit: 49152 bytes"),
        ("misaligned_kernel", threads(32), r"load of 16 bytes at .*: not aligned"),
        ("stream_of_shared_kernel", threads(32), r"load_stream takes global memory, got a shared pointer"),
        (
            "missing_lane_kernel",
            threads(40),
            r"shuffle_xor \(.*\) reads lane \d+, which does not exist: the warp has 8",
        ),
        ("grid_barrier_kernel", threads(32, 2), r"grid_barrier .* in an ordinary launch"),
        (
            "helper_at_barrier_kernel",
            threads(96),
            r"reaches block_barrier .*helpers.cpp.*is a helper thread",
        ),
        (
            "grid_exit_kernel",
            threads(64, 4, cooperative=True),
            r"grid_barrier .* 3 of 4 blocks arrived and 1 have ended",
        ),
        ("endless_kernel", threads(64, 2, cooperative=True), r"load_acquire \(.*:\d+\) reads 0 forever"),
        ("endless_kernel", threads(64, 2), r"only a cooperative launch has all blocks co-resident"),
    ],
)
def test_mistakes(sim: SimPack, kernel: str, shape: Shape, message: str) -> None:
    error, _ = run(sim, kernel, shape)
    assert error.startswith(f"[{kernel}] block (0, 0, 0), ")
    assert re.search(message, error), error


@pytest.mark.parametrize("n_threads", [32, 64])
def test_a_write_into_a_piece_that_several_threads_read(sim: SimPack, n_threads: int) -> None:
    """The reads of a 16-byte piece stop being recorded once several threads have read it."""
    for writer in (1, 7, n_threads - 1):
        error, _ = run(sim, "piece_race_kernel", threads(n_threads), n=writer)
        assert re.search(rf"thread {writer}: race: writes values\[1\] .*, which thread \d+ read", error), error


@pytest.mark.parametrize("n", (1, 16, 32, 33, 63))
def test_a_barrier_that_some_threads_pass_by(sim: SimPack, n: int) -> None:
    error, _ = run(sim, "half_barrier_kernel", threads(64), n)
    assert re.search(r"block_barrier \(.*wrong.cpp:\d+\)", error) and "all" in error, error


@pytest.mark.parametrize("n", (1, 32, 63))
def test_two_barriers_at_once(sim: SimPack, n: int) -> None:
    error, _ = run(sim, "two_barriers_kernel", threads(64), n)
    places = re.findall(r"block_barrier \(.*?:(\d+)\)", error)
    assert len(set(places)) == 2 and "the same barrier" in error, error


@pytest.mark.parametrize("n", (1, 16, 31))
@pytest.mark.parametrize("kernel", ("half_shuffle_kernel", "two_collectives_kernel", "shuffle_and_barrier_kernel"))
def test_collectives_that_some_lanes_pass_by(sim: SimPack, kernel: str, n: int) -> None:
    error, _ = run(sim, kernel, threads(64), n)
    assert re.search(r"warp 0, thread \d+: .*shuffle_xor \(.*wrong.cpp:\d+\)", error), error
    other = {"two_collectives_kernel": "ballot", "shuffle_and_barrier_kernel": "block_barrier"}.get(kernel, "all")
    assert other in error, error


@pytest.mark.parametrize("kernel", ("half_shuffle_kernel", "half_barrier_kernel"))
def test_whole_warps_and_blocks_are_no_mistake(sim: SimPack, kernel: str) -> None:
    for n in (0, 64):
        assert run(sim, kernel, threads(64), n)[0] == ""


def test_unset_shared_memory_reads_as_nan(sim: SimPack) -> None:
    error, out = run(sim, "unset_kernel", threads(32, shared_bytes=128))
    assert error == "" and np.isnan(out[:32]).all()


def test_a_copy_arrives_when_it_is_waited_for(sim: SimPack) -> None:
    error, out = run(sim, "early_read_kernel", threads(32))
    assert error == "" and np.isnan(out[:32]).all()


def test_a_counter_that_was_not_zeroed(sim: SimPack) -> None:
    counter = np.array([0x80000000 - 1], np.uint32)
    error = sim.run("grid_barrier_kernel", threads(32, 3, cooperative=True), counter=counter)
    assert re.search(r"zero it once, before its first use", error), error


def test_orders_of_threads(sim: SimPack) -> None:
    """Equal seeds give equal orders; another order of threads shows a race in global memory."""
    winners = {}
    for seed in (0, 1, 2, 3, 1):
        error, out = run(sim, "global_race_kernel", Shape((4, 1, 1), (64, 1, 1), seed=seed))
        assert error == ""
        winner = int(out.view(np.int32)[0])
        assert winners.setdefault(seed, winner) == winner
    assert winners[0] == 255 and len(set(winners.values())) > 1


@pytest.mark.parametrize(
    ("kernel", "shape", "message"),
    [
        ("no_such_kernel", Shape(), "[no_such_kernel] no kernel of this name in the pack"),
        (
            "turns_kernel",
            Shape(block=(65, 1, 1)),
            "block must be 1 to 64 threads in x and 1 in y and z, got (65, 1, 1)",
        ),
        ("turns_kernel", Shape(block=(0, 1, 1)), "got (0, 1, 1)"),
        ("turns_kernel", Shape(block=(8, 8, 1)), "got (8, 8, 1)"),
        ("turns_kernel", Shape(grid=(1, 0, 1)), "grid must be 1 to 2^31 - 1 blocks"),
        ("turns_kernel", Shape(grid=(2**31, 2, 1)), "grid must be"),
        ("turns_kernel", Shape(params_bytes=24), "params must be 32 bytes, got 24"),
        ("turns_kernel", Shape(stack_bytes=2**60), "out of memory for 32 threads"),
        ("reverse_kernel", Shape(shared_bytes=2**20), "dynamic shared memory must be at most 232448 bytes"),
    ],
)
def test_launches_that_are_refused(sim: SimPack, kernel: str, shape: Shape, message: str) -> None:
    error, _ = run(sim, kernel, shape)
    assert error.startswith(f"[{kernel}] ") and message in error, error


def test_a_short_error_buffer(sim: SimPack) -> None:
    launch = sim_pack.Launch(b"no_such_kernel")
    error = ctypes.create_string_buffer(b"x" * 32)
    assert ctypes.CDLL(str(sim.library)).lb_sim_run(ctypes.byref(launch), error, ctypes.c_size_t(8)) != 0
    assert error.raw[:8] == b"[no_suc\0" and error.raw[8:32] == b"x" * 24


def test_errors_leave_nothing_behind(sim: SimPack) -> None:
    """Larger and smaller launches reuse the stacks of abandoned fibers."""
    for size in (64, 256, 32):
        assert run(sim, "race_kernel", threads(size))[0] != ""
        out = np.zeros((12 * 40 * 12), np.int32)
        assert sim.run("indices_kernel", Shape((3, 2, 2), (40, 1, 1)), out=out) == ""
    assert run(sim, "grid_exit_kernel", threads(64, 4, cooperative=True))[0] != ""
    counter = np.zeros(1, np.uint32)
    assert sim.run("grid_barrier_kernel", threads(64, 4, cooperative=True), counter=counter) == ""


SANITIZED = """
import sys
import numpy as np
from pathlib import Path
from sim_pack import Shape, SimPack
kernel, n = sys.argv[2], int(sys.argv[3])
out = np.zeros(64, np.float32)
assert SimPack(Path(sys.argv[1])).run(kernel, Shape(shared_bytes=256), out=out, n=n) == ""
"""


@pytest.mark.slow  # 14 s: compiles the simulator with the sanitizer
@pytest.mark.parametrize("kernel", ("global_bounds_kernel", "raw_shared_bounds_kernel"))
@pytest.mark.parametrize(("n", "is_inside"), ((32, True), (33, False), (-1, False)))
def test_plain_pointers_under_address_sanitizer(kernel: str, n: int, is_inside: bool) -> None:
    libraries = [
        subprocess.run(["c++", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    environment = os.environ | {
        "LD_PRELOAD": " ".join(libraries),
        "PYTHONPATH": str(ROOT / "tests"),
        "PYTHONMALLOC": "malloc",
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    command = [sys.executable, "-c", SANITIZED, str(sim_pack.build(True)), kernel, str(n)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if is_inside:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode != 0 and "AddressSanitizer" in done.stderr and kernel in done.stderr, done.stderr
