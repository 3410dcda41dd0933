"""Products of fp8 and block-scaled operands on sim, bit by bit against the published rule in integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from reference import narrow_matrix as rule
from sim_pack import Shape, pack

CASE = np.dtype(
    [("a", "u1", (16, 32)), ("b", "u1", (8, 32)), ("scales_a", "u1", (16, 4)), ("scales_b", "u1", (8, 4)),
     ("c", "f4", (16, 8))]
)  # fmt: skip
BLOCKS = 512
KERNELS = ("multiply_fp8_13", "multiply_fp8_25", "multiply_nvfp4", "multiply_mxfp4", "multiply_mxfp8")
Cases = NDArray[np.void]


def run(kernel: str, cases: Cases) -> NDArray[np.uint32]:
    out = np.zeros((len(cases), 16, 8), np.float32)
    shape = Shape((len(cases), 1, 1), (32, 1, 1), 24 * 48)
    assert pack().run(f"{kernel}_kernel", shape, cases, out) == ""
    return out.view(np.uint32)


def expected(kernel: str, cases: Cases) -> NDArray[np.uint32]:
    a, b = cases["a"][:, :, None], cases["b"][:, None]
    a, b = np.broadcast_arrays(a, b)
    if kernel.startswith("multiply_fp8"):
        return rule.fp8_sums(a, b, cases["c"], int(kernel[-2:]))
    n = {"multiply_nvfp4": 4, "multiply_mxfp4": 2, "multiply_mxfp8": 1}[kernel]
    scales = cases["scales_a"][:, :, None, :n], cases["scales_b"][:, None, :, :n]
    of: Callable[..., NDArray[np.uint32]] = getattr(rule, kernel.removeprefix("multiply_") + "_sums")
    return of(a, b, cases["c"], *np.broadcast_arrays(*scales))


def random_cases(kernel: str, n: int, rng: np.random.Generator) -> Cases:
    """Operands and scales of every size; cancelling and missing products; NaN scales, subnormals and zeros; c of the
    size of the products, far smaller and far larger."""
    cases = np.zeros(n, CASE)
    for name in ("a", "b"):
        codes = rng.integers(0, 256, cases[name].shape).astype(np.uint8)
        if "fp8" in kernel:  # one size in each case, or all of them; NaN in some rows
            size = rng.integers(0, 16, (n, 1, 1))
            near = np.clip(size + rng.integers(-2, 3, codes.shape), 0, 15).astype(np.uint8) << 3
            codes = np.where(rng.random((n, 1, 1)) < 0.5, codes & 0x87 | near, codes)
            is_nan = (codes & 127 == 127) & (rng.random(codes.shape) < 0.98)
            codes[is_nan] -= 1
        codes[rng.random(codes.shape) < rng.choice([0, 0.3, 0.9], (n, 1, 1))] = 0
        cases[name] = codes
    half = rng.random(n) < 0.2  # the second half of the products cancels the first
    sign = np.uint8(128 if "fp8" in kernel else 0x88)
    cases["a"][half, :, 16:] = cases["a"][half, :, :16] ^ sign
    cases["b"][half, :, 16:] = cases["b"][half, :, :16]
    for name in ("scales_a", "scales_b"):
        centre = rng.integers(0, 256, (n, 1, 1))
        near = np.clip(centre + rng.integers(-9, 10, cases[name].shape), 0, 255)
        cases[name] = np.where(rng.random((n, 1, 1)) < 0.5, near, rng.integers(0, 256, cases[name].shape))
        other = (cases[name] & 127 == 127) & (rng.random(cases[name].shape) < 0.9)
        cases[name][other] -= 1
    plain = np.zeros_like(cases)
    plain[:] = cases
    plain["c"] = 0
    of_products = expected(kernel, plain).view(np.float32)
    size = np.where(np.isfinite(of_products) & (of_products != 0), np.abs(of_products), 1).astype(np.float64)
    scaled = size * rng.normal(size=size.shape) * 2.0 ** rng.choice([0, 0, -3, -12, 12, -30, 30], size.shape)
    with np.errstate(over="ignore", under="ignore"):
        c = np.where(rng.random(size.shape) < 0.15, 0, scaled).astype(np.float32)
    special = rng.random(size.shape)
    c[special < 0.01] = np.float32(1e-41)
    c[special < 0.002] = np.nan
    c[~np.isfinite(c) & (special >= 0.002)] = np.float32(3e38)
    cases["c"] = c
    return cases


@pytest.mark.first_case
@pytest.mark.parametrize("n_vectors", [200_000, pytest.param(1_000_000, marks=pytest.mark.slow)])  # 5 s
@pytest.mark.parametrize("kernel", KERNELS)
def test_random_vectors(kernel: str, n_vectors: int) -> None:
    rng = np.random.default_rng(KERNELS.index(kernel))
    seen = {"nan": 0, "zero": 0, "subnormal": 0, "infinite": 0}
    for _ in range(-(-n_vectors // (BLOCKS * 128))):
        cases = random_cases(kernel, BLOCKS, rng)
        got, want = run(kernel, cases), expected(kernel, cases)
        wrong = np.argwhere(got != want)
        assert not len(wrong), (len(wrong), wrong[0], hex(got[tuple(wrong[0])]), hex(want[tuple(wrong[0])]))
        sizes = want & 0x7FFFFFFF
        seen["nan"] += int((want == rule.NAN).sum())
        seen["zero"] += int((sizes == 0).sum())
        seen["subnormal"] += int(((sizes > 0) & (sizes < 1 << 23)).sum())
        seen["infinite"] += int((sizes == 255 << 23).sum())
    assert seen["nan"] > 1000 and seen["zero"] > 1000 and seen["subnormal"] > 100, seen


def one(a: dict[int, int], b: dict[int, int], scales: tuple[int, int] = (0, 0), c: float = 0) -> Cases:
    """A case whose rows have the bytes of a and b at these places, and the same scales everywhere."""
    case = np.zeros(1, CASE)
    for name, codes in (("a", a), ("b", b)):
        for at, code in codes.items():
            case[name][:, :, at] = code
    case["scales_a"], case["scales_b"] = scales
    case["c"] = c
    return case


ONE, TINY = 0x38, 0x01  # e4m3: 1 and 2^-9
# Results by hand. fp4: 0x2 is 1, 0x1 is 1/2, 0xa is -1. e4m3 scales: 0x38 is 1, 0x7f and 0xff are NaN. e8m0: 127 is 1.
VECTORS: list[tuple[str, Cases, float]] = [
    # 2^-14 + 1 keeps no bit below 2^-13 of sm_89, and all of them of sm_120.
    ("multiply_fp8_13", one({0: ONE, 1: TINY}, {0: ONE, 1: 0x10}), 1.0),
    ("multiply_fp8_25", one({0: ONE, 1: TINY}, {0: ONE, 1: 0x10}), 1 + 2.0**-14),
    # sm_89 adds 2^-13 sixteen products later: it survives the first half, whose result has 13 bits.
    ("multiply_fp8_13", one({0: ONE, 16: TINY}, {0: ONE, 16: 0x18}), 1 + 2.0**-13),
    # c = 2^25 (1 + 2^-23) with 1: cut to 23 bits towards zero.
    ("multiply_fp8_25", one({0: ONE}, {0: ONE}, c=2.0**25 + 4), 2.0**25 + 4),
    ("multiply_fp8_25", one({0: ONE}, {0: 0xB8}, c=2.0**25), 2.0**25 - 2),
    # Bits 26 places below the largest term are lost: -1 changes nothing.
    ("multiply_fp8_25", one({0: ONE}, {0: 0xB8}, c=2.0**26), 2.0**26),
    # Four groups of one product, and of sixteen.
    ("multiply_nvfp4", one({0: 0x2, 8: 0x2, 16: 0x2, 24: 0x2}, {0: 0x2, 8: 0x2, 16: 0x2, 24: 0x2}, (ONE, ONE)), 4.0),
    ("multiply_nvfp4", one(dict.fromkeys(range(8), 0x77), dict.fromkeys(range(8), 0x77), (0x7E, 0x7E)),
     576 * 448.0 * 448),
    # The sign of a scale is ignored; NaN with either sign is not.
    ("multiply_nvfp4", one({0: 0x2}, {0: 0x2}, (ONE | 0x80, ONE), c=3), 4.0),
    ("multiply_nvfp4", one({0: 0x2}, {0: 0x2}, (0xFF, ONE)), np.nan),
    ("multiply_nvfp4", one({}, {}, (ONE, 0x7F)), np.nan),
    # Subnormal scales: 2^-9 * 2^-9 / 4, the least product.
    ("multiply_nvfp4", one({0: 0x1}, {0: 0x1}, (TINY, TINY)), 2.0**-20),
    # Products that cancel keep the exponent of their scales, 8 + 8: c loses what is below 2^(16 - 35).
    ("multiply_nvfp4", one({0: 0x22}, {0: 0xA2}, (0x78, 0x78), c=1 + 2.0**-20), 1.0),
    ("multiply_nvfp4", one({}, {}, (0x78, 0x78), c=1 + 2.0**-20), 1 + 2.0**-20),
    ("multiply_mxfp4", one({0: 0x2, 16: 0x2}, {0: 0x2, 16: 0x2}, (128, 127)), 4.0),
    ("multiply_mxfp4", one({0: 0x2}, {0: 0x2}, (255, 127)), np.nan),
    ("multiply_mxfp4", one({0: 0x2}, {0: 0x2}, (0, 127 + 1)), 2.0**-126),
    ("multiply_mxfp4", one({0: 0x2}, {0: 0x2}, (0, 127 - 22)), 2.0**-149),
    ("multiply_mxfp4", one({0: 0x2}, {0: 0x2}, (0, 127 - 23)), 0.0),
    ("multiply_mxfp4", one({0: 0x2}, {0: 0x2}, (254, 128)), np.inf),
    ("multiply_mxfp8", one({0: ONE, 1: TINY}, {0: ONE, 1: TINY}, (127, 130)), 8 + 2.0**-15),
    ("multiply_mxfp8", one({0: ONE}, {0: ONE}, (127, 255)), np.nan),
    ("multiply_mxfp8", one({0: 0x7F}, {0: 0}, (127, 127)), np.nan),
]  # fmt: skip


@pytest.mark.parametrize(("kernel", "case", "want"), VECTORS)
def test_vectors_of_the_rule(kernel: str, case: Cases, want: float) -> None:
    bits = np.uint32(rule.NAN) if np.isnan(want) else np.float32(want).view(np.uint32)
    assert (run(kernel, case) == bits).all(), run(kernel, case).view(np.float32)[0, 0, 0]
    assert (expected(kernel, case) == bits).all()


def test_operands_are_in_their_places() -> None:
    """Each lane adds the row of A to the row of B that its sum belongs to, with their scales."""
    rng = np.random.default_rng(5)
    case = np.zeros(1, CASE)
    case["a"][0, :, 0], case["b"][0, :, 0] = 0x2, 0x2
    exponents = rng.permutation(np.arange(-6, 9).repeat(2)[:16]), rng.permutation(np.arange(-6, 2))
    for name, exponent in zip(("scales_a", "scales_b"), exponents, strict=True):
        case[name][0, :, 0] = exponent + 7 << 3
    got = run("multiply_nvfp4", case).view(np.float32)[0]
    assert (got == 2.0 ** np.add.outer(*exponents)).all()


def test_numbers_become_fp4() -> None:
    """To nearest, half to even, at most 6."""
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5])
    values = np.concatenate([ties, np.nextafter(ties, 9), np.nextafter(ties, 0), rule.FP4[:8] / 2, [7, 1e30, 1e-30]])
    given = np.float32(np.concatenate([values, -values]))
    given = np.stack([given, given[::-1]], axis=1)
    out = np.zeros(len(given), np.uint8)
    assert pack().run("to_fp4_pair_kernel", Shape((1, 1, 1), (256, 1, 1)), given, out, n=len(given)) == ""
    grid = rule.FP4[:8] / 2

    def code(value: float) -> int:
        distance = np.abs(grid - min(abs(float(value)), 6))
        nearest = np.flatnonzero(distance == distance.min())
        return int(min(nearest, key=lambda i: (i % 2, i))) | (8 if np.signbit(value) else 0)

    assert out.tolist() == [code(lo) | code(hi) << 4 for lo, hi in given]
