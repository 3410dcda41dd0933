"""The words of the kernel dialect on sim, in correct kernels: their results, in several orders of threads."""

from __future__ import annotations

import numpy as np
import pytest
from sim_pack import Shape, SimPack, pack, quads_pack
from tolerances import check

SEEDS = (0, 1, 2)


@pytest.fixture
def sim() -> SimPack:
    return pack()


@pytest.fixture(params=("sm_80", "sm_70"))
def products(request: pytest.FixtureRequest) -> SimPack:
    """Kernels of matrix products, with the layouts of these chips."""
    return pack() if request.param == "sm_80" else quads_pack()


def row(threads: int, blocks: int = 1, shared_bytes: int = 0, seed: int = 0) -> Shape:
    return Shape((blocks, 1, 1), (threads, 1, 1), shared_bytes, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_indices(sim: SimPack, seed: int) -> None:
    shape = Shape((3, 2, 2), (40, 1, 1), seed=seed)
    out = np.full((12, 40, 12), -1, np.int32)
    assert sim.run("indices_kernel", shape, out=out, n=77) == ""
    block, thread = np.meshgrid(np.arange(12), np.arange(40), indexing="ij")
    want = [thread, 40, block % 3, block // 3 % 2, block // 6, 3, 2, 2, thread % 32, thread // 32, 2, 77]
    for i, values in enumerate(want):
        assert (out[:, :, i] == values).all(), i


@pytest.mark.parametrize("seed", SEEDS)
def test_halves_of_words(sim: SimPack, seed: int) -> None:
    out = np.zeros(32, np.uint32)
    assert sim.run("halves_of_words_kernel", row(32, shared_bytes=64, seed=seed), out=out) == ""
    assert (out == np.arange(32) + np.arange(32) // 2).all()


@pytest.mark.parametrize("threads", (32, 64, 1024))
@pytest.mark.parametrize("n", (1, 3, 16, 31))
@pytest.mark.parametrize("width", (1, 2))
def test_shuffles(sim: SimPack, threads: int, n: int, width: int) -> None:
    given = np.random.default_rng(n).normal(size=(threads, width)).astype(np.float32)
    out = np.full((4, threads, width), np.nan, np.float32)
    assert sim.run(f"shuffle{4 * width}_kernel", row(threads, seed=n), given, out, n=n) == ""
    lane = np.arange(threads) % 32
    base = np.arange(threads) - lane
    sources = (
        lane ^ n,
        np.full_like(lane, n),
        np.where(lane + n < 32, lane + n, lane),
        np.where(lane < n, lane, lane - n),
    )
    assert (out == np.stack([given[base + source] for source in sources])).all()


@pytest.mark.parametrize("n", (-1, 50, 99))
def test_votes(sim: SimPack, n: int) -> None:
    given = np.random.default_rng(n + 1).integers(0, 100, 96).astype(np.int32)
    out = np.zeros((3, 96), np.uint32)
    assert sim.run("votes_kernel", row(96), given, out, n=n) == ""
    votes = (given > n).reshape(3, 32)
    ballots = (votes * (1 << np.arange(32, dtype=np.uint64))).sum(1)
    for got, want in zip(out, (ballots, votes.any(1), votes.all(1)), strict=True):
        assert (got == np.repeat(want, 32)).all()


def test_votes_of_a_part_of_a_warp(sim: SimPack) -> None:
    out = np.zeros((3, 40), np.uint32)
    assert sim.run("votes_kernel", row(40), np.ones(40, np.int32), out, n=0) == ""
    assert out[0, 32] == 0xFF and (out[2] == 1).all()


@pytest.mark.parametrize("threads", (32, 256, 1024))
@pytest.mark.parametrize("seed", SEEDS)
def test_reductions(sim: SimPack, threads: int, seed: int) -> None:
    given = (np.random.default_rng(threads).normal(size=threads) * 100).astype(np.float32)
    out = np.full((6, threads), np.nan, np.float32)
    assert sim.run("reductions_kernel", row(threads, seed=seed), given, out) == ""
    warps, ints = given.reshape(-1, 32), given.astype(np.int32).reshape(-1, 32)
    tree = warps
    while tree.shape[1] > 1:  # the order of additions is part of the word
        tree = tree[:, : tree.shape[1] // 2] + tree[:, tree.shape[1] // 2 :]
    assert (out[0] == np.repeat(tree[:, 0], 32)).all()
    assert (out[1] == np.repeat(warps.max(1), 32)).all()
    assert (out[2] == np.repeat(warps.min(1), 32)).all()
    check("sim_sum", out[3], np.full(threads, given.astype(np.float64).sum()), np.abs(given).sum())
    assert (out[3] == out[3, 0]).all()
    assert (out[4] == given.max()).all()
    assert (out[5] == np.repeat(ints.sum(1) + ints.max(1) + ints.min(1), 32)).all()


@pytest.mark.parametrize("size", (2, 4, 8, 16))
def test_loads_and_stores(sim: SimPack, size: int) -> None:
    given = np.random.default_rng(size).integers(0, 256, (1000, size), dtype=np.uint8)
    out = np.zeros_like(given)
    assert sim.run(f"copy{size}_kernel", row(64, 3), given, out, n=1000) == ""
    assert (out == given).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_shared_memory(sim: SimPack, seed: int) -> None:
    given = np.random.default_rng(0).normal(size=(3, 100)).astype(np.float32)
    out = np.full_like(given, np.nan)
    assert sim.run("reverse_kernel", row(100, 3, 400, seed), given, out) == ""
    assert (out == given[:, ::-1]).all()
    entry = next(k for k in sim.kernels() if k.name == b"reverse_kernel")
    assert (entry.max_threads, entry.min_blocks, entry.static_shared_bytes) == (256, 1, 1024)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("stages", (1, 2, 7))
def test_helpers(sim: SimPack, stages: int, seed: int) -> None:
    """The producer warp copies the stages that the other warps sum; it takes no part in their barriers."""
    given = np.zeros(stages * 64 + 4, np.float32)
    given = given[-given.ctypes.data % 16 // 4 :][: stages * 64].reshape(stages, 64)
    given[:] = np.random.default_rng(stages).integers(-50, 50, (stages, 64))
    out, want = np.full(65, np.nan, np.float32), np.zeros(64, np.float32)
    assert sim.run("helped_kernel", row(96, 1, 512, seed), given, out, n=stages) == ""
    for stage in given:
        want = (want + stage)[::-1]
    assert (out[:64] == want).all() and out[64] == 64


@pytest.mark.parametrize("stages", (1, 2, 3, 10))
def test_asynchronous_copies(sim: SimPack, stages: int) -> None:
    given = np.random.default_rng(stages).integers(-50, 50, (stages, 128)).astype(np.float32)
    out = np.full(128, np.nan, np.float32)
    assert sim.run("stages_kernel", row(32), given, out, n=stages) == ""
    assert (out == given.sum(0)).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_atomics(sim: SimPack, seed: int) -> None:
    given = np.random.default_rng(3).integers(0, 1000, 5 * 70).astype(np.int32)
    out = np.zeros(10, np.uint32)
    assert sim.run("atomics_kernel", row(70, 5, seed=seed), given, out) == ""
    last = int(np.flatnonzero(given == given.max())[-1])
    assert out[[0, 1, 5]].tolist() == [given.sum()] * 3
    assert out[2:3].view(np.float32)[0] == given.sum()
    assert out[[3, 4]].tolist() == [given.max()] * 2
    assert int(out[6:8].view(np.uint64)[0]) == int(given.max()) << 32 | last
    assert int(out[8:10].view(np.uint64)[0]) == int(given.sum()) << 30


@pytest.mark.parametrize("grid", ((1, 1, 1), (4, 1, 1), (3, 2, 1)))
@pytest.mark.parametrize("threads", (1, 40, 256))
def test_grid_barrier(sim: SimPack, grid: tuple[int, int, int], threads: int) -> None:
    """Two launches use one counter, the second with another grid."""
    counter = np.zeros(1, np.uint32)
    for launch in (grid, (5, 1, 1)):
        blocks = int(np.prod(launch))
        want = np.arange(1, blocks + 1, dtype=np.uint32)
        out = np.concatenate([want, np.zeros(blocks, np.uint32)])
        shape = Shape(launch, (threads, 1, 1), cooperative=True, seed=threads)
        assert sim.run("grid_kernel", shape, out=out, counter=counter, n=7) == ""
        for _ in range(7):
            want = want + np.roll(want, -1)
        assert (out[blocks:] == want).all()


@pytest.mark.parametrize("n", (1, 2, 8))
@pytest.mark.parametrize("seed", (0, 5))
def test_cluster_barrier(sim: SimPack, n: int, seed: int) -> None:
    out = np.zeros(48, np.uint32)
    shape = Shape((24, 1, 1), (40, 1, 1), cluster=n, seed=seed)
    assert sim.run("cluster_kernel", shape, out=out, n=n) == ""
    assert (out[24:] == np.arange(1, 25).reshape(-1, n).sum(axis=1).repeat(n)).all()


def test_waiting_for_another_block(sim: SimPack) -> None:
    out, counter = np.full(6, -1, np.int32), np.zeros(1, np.uint32)
    shape = Shape((6, 1, 1), (64, 1, 1), cooperative=True)
    assert sim.run("turns_kernel", shape, out=out, counter=counter) == ""
    assert out.tolist() == [5, 4, 3, 2, 1, 0]


@pytest.mark.first_case
@pytest.mark.parametrize("depth", (16, 48))
@pytest.mark.parametrize("kind", ("f16", "bf16"))
def test_matrix_product(products: SimPack, kind: str, depth: int) -> None:
    given = np.random.default_rng(depth).normal(size=(2, 16, depth)).astype(np.float16)
    if kind == "bf16" and products is quads_pack():
        pytest.skip("sm_70 multiplies f16 only")
    if kind == "bf16":
        bits = (given.astype(np.float32).view(np.uint32) & 0xFFFF0000).astype(np.uint32)
        values, stored = bits.view(np.float32).astype(np.float64), (bits >> 16).astype(np.uint16)
    else:
        values, stored = given.astype(np.float64), given.view(np.uint16)
    out = np.zeros((16, 16), np.float32)
    assert products.run(f"matrix_{kind}_kernel", row(32), aligned(stored), out, n=depth) == ""
    check("sim_sum", out, values[0] @ values[1].T, np.abs(values[0]) @ np.abs(values[1]).T)


def aligned(values: np.ndarray) -> np.ndarray:
    """The bytes of values, from an address that is a multiple of 16 on."""
    raw = np.zeros(values.nbytes + 16, np.uint8)
    start = -raw.ctypes.data % 16
    raw = raw[start : start + values.nbytes]
    raw[:] = values.reshape(-1).view(np.uint8)
    return raw


def chain_operands() -> np.ndarray:
    """Integers A, B and M, exact in f16. A and B are stored [n, k], M is stored [k, n] and loaded transposed."""
    given = np.random.default_rng(3).integers(-3, 4, (3, 16, 16))
    given[2] *= 25  # sums above 2048 need two f16 numbers
    return given


def test_a_chain_of_products(products: SimPack) -> None:
    given = chain_operands()
    out = np.full(18 * 16, np.nan, np.float32)
    assert products.run("chain_kernel", row(32), aligned(given.astype(np.float16)), out) == ""
    first = given[0] @ given[1].T
    assert np.array_equal(out[:256].reshape(16, 16), first @ given[2])
    assert np.array_equal(out[256:272], first.max(axis=1))
    assert np.array_equal(out[272:], first.sum(axis=1))


def test_sums_are_operands(sim: SimPack) -> None:
    given = chain_operands()
    out = np.full(3 * 256, np.nan, np.float32)
    assert sim.run("sums_as_operands_kernel", row(32), aligned(given.astype(np.float16)), out) == ""
    product, high, low = out.reshape(3, 16, 16)
    assert np.array_equal(product[:8], (given[0] @ given[1].T @ given[2])[:8]) and not product[8:].any()
    assert np.array_equal(high, product.astype(np.float16)) and np.array_equal(high + low, product)
    assert low.any()


def test_products_of_bytes_are_exact(products: SimPack) -> None:
    given = np.random.default_rng(0).integers(-128, 128, (24, 64), np.int8)
    given[0], given[16] = -128, -128
    out = np.zeros((2, 16, 8), np.int32)
    assert products.run("matrix_bytes_kernel", row(32), aligned(given), out, n=7) == ""
    a, b = given[:16].astype(int), given[16:].astype(int)
    assert np.array_equal(out[0], a @ b.T + 7)
    assert np.array_equal(out[1], a[:, :16] @ b[:, :16].T + 7)


def test_bytes_become_fragments(products: SimPack) -> None:
    rng = np.random.default_rng(5)
    a, b = rng.integers(-128, 128, (16, 16)), rng.integers(-8, 9, (16, 16))
    fields = np.stack([rng.choice([0.25, 0.5, 2], 16), rng.integers(-3, 4, 16)], 1)
    parts = (a.astype(np.int8), fields.astype(np.float32), b.astype(np.float16))
    given = np.concatenate([part.reshape(-1).view(np.uint8) for part in parts])
    out = np.full((16, 16), np.nan, np.float32)
    assert products.run("expand_kernel", row(32), aligned(given), out) == ""
    assert np.array_equal(out, (a * fields[:, :1] - fields[:, 1:]) @ b.T)


def test_a_collective_orders_its_warp(sim: SimPack) -> None:
    out = np.full(256, -1, np.int32)
    assert sim.run("warp_order_kernel", row(256), out=out) == ""
    assert (out == (np.arange(256) ^ 31)).all()


def test_kernels_are_listed_by_name(sim: SimPack) -> None:
    names = [entry.name for entry in sim.kernels()]
    assert names == sorted(names) and b"grid_kernel" in names
    assert {entry.params_bytes for entry in sim.kernels()} == {32}
