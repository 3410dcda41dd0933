"""Scalar conversions and arithmetic on sim, against exact references."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sim_pack import Shape, SimPack, pack
from tolerances import check

EDGES = np.array(
    [
        *(0.0, -0.0, np.inf, -np.inf, np.nan, 1e38, -1e38),
        *(65504, 65519.99, 65520, 2**-24, 2**-25, 3 * 2**-26, 2**-14, 1e-8, 1 + 2**-11),  # f16
        *(448, 463.99, 464, 480, 2**-6, 2**-9, 2**-10, 3 * 2**-11, 1.0625, 1.1875),  # fp8
        *(1 + 2**-8, 1 + 3 * 2**-8),  # bf16
    ],
    np.float32,
)


@pytest.fixture
def sim() -> SimPack:
    return pack()


def apply(sim: SimPack, kernel: str, given: NDArray[Any], dtype: Any, columns: int = 1) -> NDArray[Any]:
    n = len(given)
    out = np.zeros((n, columns), dtype)
    shape = Shape(((n + 255) // 256, 1, 1), (256, 1, 1))
    assert sim.run(kernel, shape, np.ascontiguousarray(given), out, n=n) == ""
    return out[:, 0] if columns == 1 else out


def floats() -> NDArray[np.float32]:
    """Floats of every exponent, and ties."""
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint64).astype(np.uint32)
    ties = bits & np.uint32(0xFFFF8000)
    return np.concatenate([EDGES, bits.view(np.float32), ties.view(np.float32)])


def fp8_values() -> NDArray[np.float64]:
    """The values of codes 0 to 0x7e."""
    code = np.arange(0x7F)
    exponent, mantissa = code >> 3, code & 7
    return np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))


def test_to_f16(sim: SimPack) -> None:
    x = floats()
    with np.errstate(over="ignore"):
        want = x.astype(np.float16)
    got = apply(sim, "f32_to_f16_kernel", x, np.float16)
    assert np.array_equal(got, want, equal_nan=True)
    assert (np.signbit(got) == np.signbit(want))[~np.isnan(x)].all()


def test_to_bf16(sim: SimPack) -> None:
    x = floats()
    x = x[~np.isnan(x)]
    bits = x.view(np.uint32).astype(np.uint64)
    want = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    assert (apply(sim, "f32_to_bf16_kernel", x, np.uint16) == want).all()
    nan = apply(sim, "f32_to_bf16_kernel", np.array([np.nan], np.float32), np.uint16)
    assert nan[0] & 0x7F80 == 0x7F80 and nan[0] & 0x7F


def test_to_fp8(sim: SimPack) -> None:
    x = floats()
    got = apply(sim, "f32_to_fp8_kernel", x, np.uint8)
    table = fp8_values()
    magnitude = np.minimum(np.abs(np.where(np.isnan(x), np.float32(0), x)).astype(np.float64), 448)
    above = np.searchsorted(table, magnitude)
    below = np.maximum(above - 1, 0)
    to_above, to_below = table[above] - magnitude, magnitude - table[below]
    nearest = np.where((to_above < to_below) | ((to_above == to_below) & (above % 2 == 0)), above, below)
    want = np.where(np.isnan(x), 0x7F, nearest)
    assert (got & 0x7F == want).all()
    assert (got >> 7 == np.signbit(x)).all()


def test_to_f32(sim: SimPack) -> None:
    halves = np.arange(65536, dtype=np.uint16)
    assert np.array_equal(
        apply(sim, "f16_to_f32_kernel", halves, np.float32), halves.view(np.float16).astype(np.float32), equal_nan=True
    )
    got = apply(sim, "bf16_to_f32_kernel", halves, np.uint32)
    assert (got == halves.astype(np.uint32) << 16).all()
    codes = np.arange(256, dtype=np.uint8)
    positive = np.append(fp8_values(), np.nan)
    got = apply(sim, "fp8_to_f32_kernel", codes, np.float32)
    assert np.array_equal(got, np.concatenate([positive, -positive]), equal_nan=True)
    assert (np.signbit(got) == (codes >= 128)).all()


def test_fma2_rounds_once(sim: SimPack) -> None:
    """Against exact fractions, with addends far below, near and above the product."""
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 2**16, (4000, 3, 2), dtype=np.uint64).astype(np.uint16)
    ties = rng.choice(
        np.array([0x3C00, 0x3C01, 0x0001, 0x8001, 0x1000, 0x7BFF, 0xFBFF, 0x0000, 0x8000], np.uint16), (3000, 3, 2)
    )
    given = np.concatenate([bits, ties]).view(np.float16)
    given[~np.isfinite(given)] = 1
    out = apply(sim, "fma2_kernel", given, np.float16, 2)
    finite = np.arange(0x7C00, dtype=np.uint16).view(np.float16)
    table = [Fraction(float(v)) for v in finite] + [Fraction(65536)]
    grid = np.array([float(v) for v in table])
    for (a, b, c), got in zip(given.transpose(0, 2, 1).reshape(-1, 3).tolist(), out.ravel().tolist(), strict=True):
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        size = abs(exact)
        above = min(int(np.searchsorted(grid, float(min(size, Fraction(65536))))), 0x7C00)
        candidates = range(max(above - 2, 0), min(above + 2, 0x7C01))
        code = min(candidates, key=lambda i: (abs(table[i] - size), i % 2))
        want = np.inf if code == 0x7C00 else float(table[code])
        assert abs(got) == want and (exact == 0 or want == 0 or (got < 0) == (exact < 0)), (a, b, c)


def test_dot4(sim: SimPack) -> None:
    given = np.random.default_rng(6).integers(-(2**31), 2**31, (5000, 3), dtype=np.int64).astype(np.int32)
    given[0] = -2139062144, -2139062144, 2**31 - 1  # 0x80808080: wraps
    got = apply(sim, "dot4_kernel", given, np.int32, 4)
    b = given[:, 1].copy().view(np.int8).reshape(-1, 4).astype(np.int64)
    for i, sign in enumerate((np.int8, np.uint8)):
        a = given[:, 0].copy().view(sign).reshape(-1, 4).astype(np.int64)
        assert (got[:, i] == ((a * b).sum(1) + given[:, 2]).astype(np.int32)).all()
    assert (got[:, 2] == given[:, :2].max(1)).all() and (got[:, 3] == given[:, :2].min(1)).all()


def test_lookup8(sim: SimPack) -> None:
    given = np.random.default_rng(7).integers(0, 2**32, (1000, 6), dtype=np.uint64).astype(np.uint32)
    given[:, :2] &= 0x7F7F7F7F
    given[:, 3:5] = 0x03020100, 0x07060504  # indices of the low nibbles and of the high nibbles
    got = apply(sim, "lookup8_kernel", given, np.uint32, 4).view(np.uint8)
    tables, codes = given[:, :2].copy().view(np.uint8), given[:, 2:3].copy().view(np.uint8)
    order = got[:, 8:]
    assert (np.sort(order, 1) == np.arange(8)).all()
    nibbles = np.take_along_axis(np.concatenate([codes & 15, codes >> 4], 1), order, 1)
    assert (got[:, :8] == np.where(nibbles < 8, np.take_along_axis(tables, nibbles % 8, 1), 0)).all()


@pytest.mark.parametrize(
    ("name", "low", "high", "reference"),
    [
        ("exp", -80, 80, np.exp),
        ("exp2", -120, 120, np.exp2),
        ("log", 1e-30, 1e30, np.log),
        ("rsqrt", 1e-30, 1e30, lambda x: 1 / np.sqrt(x)),
        ("rcp", 1e-30, 1e30, lambda x: 1 / x),
        ("sqrt", 1e-30, 1e30, np.sqrt),
        ("round_even", -3, 3, np.rint),
        ("abs", -3, 3, np.abs),
    ],
)
def test_functions(sim: SimPack, name: str, low: float, high: float, reference: Any) -> None:
    x = np.concatenate([np.linspace(low, high, 4999), [1.5, 2.5, 1.0]]).astype(np.float32)
    check("sim_function", apply(sim, f"{name}_kernel", x, np.float32), reference(x.astype(np.float64)))
