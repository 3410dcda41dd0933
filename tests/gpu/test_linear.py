"""The GEMV on a device, compared with fp64 from the same quantised inputs and with the CPU."""

from __future__ import annotations

from pathlib import Path

import gpu_packs
import numpy as np
import pytest
from linear_cases import check, extreme_codes, group, shapes_of
from lucebox import _engine
from lucebox.errors import InvalidRequestError
from lucebox.selftest import ops
from numpy.typing import NDArray
from reference import linear as reference
from reference.attention import round_to
from reference.linear import BLOCK_TYPES, FP8, PLAIN_TYPES, random_weights

F32 = NDArray[np.float32]


@pytest.fixture(scope="module")
def pack(pack_folder: Path) -> _engine.gpu.Pack:
    """A pack without skinny GEMM, so that the GEMV multiplies several rows of types that have no GEMM of tiles."""
    return gpu_packs.load(pack_folder, gpu_packs.manifest_without(pack_folder, "gemm_skinny_.*"))


@pytest.fixture(scope="module")
def whole_pack(pack_folder: Path) -> _engine.gpu.Pack:
    return gpu_packs.load(pack_folder, gpu_packs.manifest_of(pack_folder))


def family(dtype: str, activations: str) -> str:
    """A device keeps 16 bits of an x that meets quantised weights in f32 mode."""
    return "linear_int16" if activations == "f32" and dtype not in PLAIN_TYPES else "linear"


@pytest.mark.parametrize("activations", ["int8", "f32"])
@pytest.mark.parametrize("dtype", (*BLOCK_TYPES, *PLAIN_TYPES, FP8))
def test_product(pack: _engine.gpu.Pack, dtype: str, activations: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for n_out, n_in in shapes_of(dtype):
        w = random_weights(dtype, n_out * n_in, rng)
        for rows in (1,) if dtype in (*PLAIN_TYPES, "Q8_0", "Q4_0", "Q4_K", "Q6_K") else (1, 3):
            x = rng.normal(size=(rows, n_in)).astype(np.float32)
            got = ops.linear(w, dtype, n_out, n_in, x, activations=activations, pack=pack)
            what = f"n_out {n_out} n_in {n_in} rows {rows}: {ops.take_started(pack)}"
            want, scale = reference.linear(w, dtype, n_out, x, activations)
            check(got, want, scale, family(dtype, activations), what)
            if dtype == FP8 and activations == "int8":
                continue  # whose x the CPU does not round
            beside = ops.linear(w, dtype, n_out, n_in, x, activations=activations)
            check(got, beside, scale, family(dtype, activations), what)


@pytest.mark.parametrize("activations", ["int8", "f32"])
@pytest.mark.parametrize("dtype", (*BLOCK_TYPES, *PLAIN_TYPES, FP8))
def test_long_rows(pack: _engine.gpu.Pack, dtype: str, activations: str, seed: int) -> None:
    """x is longer than the threads of a block can hold, so they process it in parts of unequal length."""
    rng = np.random.default_rng(seed)
    n_out, n_in = 5, 41216
    w = random_weights(dtype, n_out * n_in, rng)
    x = rng.normal(size=(1, n_in)).astype(np.float32)
    add = rng.normal(size=(1, n_out)).astype(np.float32)
    got = ops.linear(w, dtype, n_out, n_in, x, add, activations, pack=pack)
    want, scale = reference.linear(w, dtype, n_out, x, activations)
    check(got, want + add, scale + np.abs(add), family(dtype, activations), str(ops.take_started(pack)))


@pytest.mark.parametrize("activations", ["int8", "f32"])
@pytest.mark.parametrize(
    "dtypes",
    [
        ("Q4_K", "Q4_K", "Q6_K"),
        ("Q8_0", "Q8_0"),
        ("Q4_0", "Q6_K", "Q4_K", "Q8_0"),
        ("Q2_K", "Q3_K", "Q3_K", "Q5_K"),
        ("IQ4_XS", "MXFP4", "Q5_0", "IQ4_XS"),
        ("NVFP4", FP8, "NVFP4", "BF16"),
    ],
)
def test_group(pack: _engine.gpu.Pack, dtypes: tuple[str, ...], activations: str, seed: int) -> None:
    """Products of one or several types; each gives the same bits as alone. `add` is in the memory of y."""
    rng = np.random.default_rng(seed)
    n_in, rows = 512, 1
    n_out = [70, 9, 1, 33][: len(dtypes)]
    weights, x, add = group(rng, list(dtypes), n_out, n_in, rows)
    got = ops.linear_group(weights, list(dtypes), n_out, n_in, x, add, activations, pack=pack)
    for y, w, dtype, n, a in zip(got, weights, dtypes, n_out, add, strict=True):
        want, scale = reference.linear(w, dtype, n, x, activations)
        check(y, want + a, scale + np.abs(a), family(dtype, activations), dtype)
        assert np.array_equal(y, ops.linear(w, dtype, n, n_in, x, a, activations, pack=pack))


@pytest.mark.parametrize("activations", ["int8", "f32"])
@pytest.mark.parametrize("rows", [1, 9, 40, 70])
def test_nvfp4_with_scales_of_rows(whole_pack: _engine.gpu.Pack, rows: int, activations: str, seed: int) -> None:
    """Every way to multiply reads the scale of a row: GEMV, skinny GEMM, expansion."""
    rng = np.random.default_rng(seed)
    n_out, n_in = 37, 768
    w = reference.scaled_nvfp4(
        random_weights("NVFP4", n_out * n_in, rng), rng.uniform(0.1, 10, n_out).astype(np.float32)
    )
    x = rng.normal(size=(rows, n_in)).astype(np.float32)
    got = ops.linear(w, "NVFP4_SCALED", n_out, n_in, x, activations=activations, pack=whole_pack)
    started = ops.take_started(whole_pack)
    values = reference.decode_scaled_nvfp4(w, n_out).reshape(-1)
    family = "linear_int16" if activations == "f32" else "linear"
    if any(name.startswith("gemm_skinny") for name in started):
        family = "matmul_skinny"
    if "expand_weights_kernel" in started:
        wide = "F16" if whole_pack.target in gpu_packs.F16_ONLY else "BF16"
        values, x, family = round_to(values, wide), round_to(x, wide), "matmul_halves"
    elif activations == "int8":
        x = reference.rounded(x)
    check(got, *reference.linear(values.view(np.uint8), "F32", n_out, x, "f32"), family, str(started))


# (dtype, n_in, outputs are even): one and several teams, rows that are multiples of 16 bytes alone and in pairs.
@pytest.mark.parametrize(("dtype", "n_in", "is_even"), [("Q4_K", 4096, False), ("Q4_K", 17408, False),
                                                        ("Q6_K", 6144, False), ("Q6_K", 5120, True)])  # fmt: skip
def test_weights_through_a_ring(pack: _engine.gpu.Pack, dtype: str, n_in: int, is_even: bool, seed: int) -> None:
    """Two products of long rows, as many as the ring is for; both are added to what is there."""
    rng = np.random.default_rng(seed)
    values, n_bytes = reference.block_size(dtype)
    rows = (120 << 10) * pack.device.n_sms // (n_in // values * n_bytes)
    n_out = [rows // 2 * 2, 46] if is_even else [rows | 1, 45]
    weights, x, add = group(rng, len(n_out) * [dtype], n_out, n_in, 1)
    got, again = (ops.linear_group(weights, [dtype] * 2, n_out, n_in, x, add, pack=pack) for _ in range(2))
    kernel = ops.take_started(pack)[-1]
    assert ("_ring_" in kernel) == (pack.target in ("sim", "sm_90")), kernel
    for y, same, w, n, a in zip(got, again, weights, n_out, add, strict=True):
        want, scale = reference.linear(w, dtype, n, x, "int8")
        check(y, want + a, scale + np.abs(a), "linear", kernel)
        assert np.array_equal(y, same)


# Slots that are full, that some teams have no row in, and that nobody has; threads without a piece.
@pytest.mark.parametrize(("n_in", "n_out"), [(4096, [60, 23]), (2304, [46]), (1024, [1, 120, 7]), (16384, [17])])
def test_weights_in_shared_memory_at_once(pack: _engine.gpu.Pack, n_in: int, n_out: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights, x, add = group(rng, len(n_out) * ["Q4_K"], n_out, n_in, 1)
    dtypes = ["Q4_K"] * len(n_out)
    got, again = (ops.linear_group(weights, dtypes, n_out, n_in, x, add, pack=pack) for _ in range(2))
    kernel = ops.take_started(pack)[-1]
    assert ("_whole_" in kernel) == (pack.target in ("sim", "sm_90")), kernel
    for y, same, w, n, a in zip(got, again, weights, n_out, add, strict=True):
        want, scale = reference.linear(w, "Q4_K", n, x, "int8")
        check(y, want + a, scale + np.abs(a), "linear", kernel)
        assert np.array_equal(y, same)


def test_many_rows_through_a_ring(pack: _engine.gpu.Pack, seed: int) -> None:
    """On a device as small as the simulator, a block has more rows than it sums at a time."""
    rng = np.random.default_rng(seed)
    n_out, n_in = min(pack.device.n_sms, 16) * 401, 4096
    w = random_weights("Q4_K", n_out * n_in, rng)
    x = rng.normal(size=(1, n_in)).astype(np.float32)
    check(
        ops.linear(w, "Q4_K", n_out, n_in, x, pack=pack),
        *reference.linear(w, "Q4_K", n_out, x, "int8"),
        "linear",
        "a ring",
    )


def test_group_of_all_types_in_f32(pack: _engine.gpu.Pack, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_in = 256
    x = rng.normal(size=(1, n_in)).astype(np.float32)
    for dtypes in (["F32", "Q4_K", "BF16", "Q6_K"], ["F16", "Q8_0", "Q4_0"], ["Q2_K", "Q3_K", "IQ4_XS"]):
        weights = [random_weights(d, 19 * n_in, rng) for d in dtypes]
        got = ops.linear_group(weights, dtypes, [19] * len(dtypes), n_in, x, activations="f32", pack=pack)
        for y, w, dtype in zip(got, weights, dtypes, strict=True):
            check(y, *reference.linear(w, dtype, 19, x, "f32"), family(dtype, "f32"), dtype)


@pytest.mark.parametrize("dtype", BLOCK_TYPES)
def test_extreme_codes(pack: _engine.gpu.Pack, dtype: str) -> None:
    """All codes and activations at their maximum, where narrow accumulators would saturate."""
    for w, x in extreme_codes(dtype, 1):
        check(ops.linear(w, dtype, 1, 256, x, pack=pack), *reference.linear(w, dtype, 1, x, "int8"), "linear", dtype)


def test_rounding_of_activations(pack: _engine.gpu.Pack, seed: int) -> None:
    """An identity matrix shows the rounded x: the codes are the CPU's, ties and scales too small to divide by too."""
    n = 256
    w = np.zeros((n, n // 32, 34), np.uint8)
    w[:, :, :2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    for i in range(n):
        w[i, i // 32, 2 + i % 32] = 1
    x = np.random.default_rng(seed).normal(size=(3, n)).astype(np.float32)
    x[0, 32:64] = 0
    x[1, :32] = np.arange(32) * 0.5
    x[1, 32:64] = 1e-44
    x[1, 64:96] = np.arange(32) * 1e-38
    x[2, :128] *= 10.0 ** np.arange(-30, 34, 16, dtype=np.float32).repeat(32)
    got = np.concatenate([ops.linear(w.reshape(-1), "Q8_0", n, n, row[None], pack=pack) for row in x])
    q, scale = reference.quantize_q8(x)
    assert np.array_equal(got, q.astype(np.float32) * np.repeat(scale, 32, axis=1))


@pytest.mark.parametrize("dtype", ["Q8_0", "Q4_K", "Q2_K", "IQ4_NL", "NVFP4", FP8, "BF16"])
@pytest.mark.parametrize("activations", ["int8", "f32"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_not_a_number_stays_one(pack: _engine.gpu.Pack, dtype: str, activations: str, poison: float) -> None:
    x = np.ones((3, 512), np.float32)
    x[1, 300] = poison
    w = random_weights(dtype, 5 * 512, np.random.default_rng(4))
    y = ops.linear(w, dtype, 5, 512, x, activations=activations, pack=pack)
    want = ops.linear(w, dtype, 5, 512, x, activations=activations)
    assert np.array_equal(np.isfinite(y), np.isfinite(want)) and np.isfinite(y[[0, 2]]).all()


def test_what_is_refused(pack: _engine.gpu.Pack) -> None:
    def product(dtype: str, n_bytes: int, n_in: int) -> None:
        ops.linear(np.zeros(n_bytes, np.uint8), dtype, 1, n_in, np.zeros((1, n_in), np.float32), pack=pack)

    with pytest.raises(InvalidRequestError, match=r"Q4_K rows are multiples of 256 values, got \[1, 100\]"):
        product("Q4_K", 0, 100)


@pytest.mark.parametrize("n_in", [1028, 2048])  # one value more than a thread's piece of a row holds; a router's
def test_rows_of_a_router_have_the_bits_of_one_row(whole_pack: _engine.gpu.Pack, n_in: int, seed: int) -> None:
    """Up to 8 rows of small F32 matrices are one launch, whose blocks read their weights once."""
    rng = np.random.default_rng(seed)
    n_outs = [29, 1]
    weights = [random_weights("F32", n_out * n_in, rng) for n_out in n_outs]
    x = rng.normal(size=(8, n_in)).astype(np.float32)

    def products(rows: F32) -> list[F32]:
        add = [np.ones((len(rows), n_out), np.float32) for n_out in n_outs]
        return ops.linear_group(weights, ["F32", "F32"], n_outs, n_in, rows, add, pack=whole_pack)

    alone = [np.concatenate(each) for each in zip(*(products(x[i : i + 1]) for i in range(8)), strict=True)]
    for rows in (2, 7, 8):
        ops.take_started(whole_pack)
        together = products(x[:rows])
        assert "gemv_f32_rows_kernel" in str(ops.take_started(whole_pack))
        assert all(np.array_equal(one[:rows], got) for one, got in zip(alone, together, strict=True))
