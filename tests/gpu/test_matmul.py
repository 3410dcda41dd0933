"""Skinny GEMM and GEMM on a device, compared with fp64 from operands rounded as in each kernel."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import gpu_packs
import numpy as np
import pytest
from linear_cases import check, extreme_codes, group
from lucebox import _engine
from lucebox.errors import InvalidRequestError
from lucebox.selftest import ops
from numpy.typing import NDArray
from reference import fp8, narrow_matrix, nvfp4
from reference import linear as reference
from reference.attention import round_to
from reference.linear import FP8, PLAIN_TYPES, random_weights

BLOCK_TYPES = ("Q8_0", "Q4_0", "Q4_K", "Q6_K")
# Skinny GEMM kernels, where the target has them, take up to 32 rows of whole 256 values; of NVFP4 and Q4_K up to 48.
FEW_TYPES = (*reference.BLOCK_TYPES, FP8, "F16", "BF16")
# Nothing reads these with more rows as they are: they are expanded.
EXPANDED_TYPES = ("Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q5_K", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4", FP8)
PAIRS = [(d, a) for d in BLOCK_TYPES for a in ("int8", "f32")] + [(d, "f32") for d in PLAIN_TYPES]
ROWS = (2, 3, 8, 9, 16, 17, 33, 64, 65, 130)
MAX_SPECULATION_ROWS = 64

FEW_SHAPES = [(2, 256), (7, 5120), (13, 768), (16, 2816), (22, 3328), (32, 1280)]  # rows, n_in
# All shapes of the formats that differ most.
FEW_CASES = [
    (dtype, *shape)
    for dtype in FEW_TYPES
    for shape in (FEW_SHAPES if dtype in ("Q8_0", "Q4_K", "Q6_K", "NVFP4", FP8) else FEW_SHAPES[1::4])
]

# The kernels for prompts of FP8 weights, and the bits that their sums keep.
FP8_KERNELS = {
    "gemm_sm90_f8_e4m3_256x128_kernel": 13,
    "gemm_sm90_f8_e4m3_128x128_kernel": 13,
    "gemm_sm89_f8_e4m3_kernel": 13,
    "gemm_sm120_f8_e4m3_kernel": 25,
}
FP8_KERNEL = re.compile(r"gemm_sm\d+_f8_e4m3_.*")
FP4_KERNEL = "gemm_sm120_nvfp4_kernel"

# Products of few rows and of what is made of their sums.
CHAINS = [
    ("Q4_K", "Q6_K", 2, 256, 256),
    ("Q6_K", "Q5_K", 9, 1024, 768),
    ("Q5_K", "Q4_K", 22, 3328, 512),
    ("Q4_K", "Q4_K", 32, 512, 1280),
    ("Q8_0", "Q8_0", 15, 1024, 1792),
    ("IQ4_XS", "Q3_K", 13, 512, 512),
    ("Q2_K", "Q2_K", 19, 1024, 768),
    ("Q4_1", "MXFP4", 18, 768, 256),
    ("NVFP4", "NVFP4", 21, 768, 512),
    (FP8, "NVFP4", 7, 512, 768),
    ("NVFP4", FP8, 17, 256, 1024),
    ("BF16", "BF16", 9, 1024, 768),
    ("BF16", "BF16", 30, 256, 1280),
    ("F16", "F16", 2, 256, 256),
    ("F16", "F16", 22, 3328, 512),
]

F32 = NDArray[np.float32]


def rounded_to(x: F32, dtype: str) -> F32:
    """x rounded to the nearest 16-bit numbers; f16 saturates to finite values."""
    if dtype == "F16":
        x = np.clip(x, -65504, 65504)
    return round_to(np.ascontiguousarray(x), dtype)


def scaled_to_f16(x: F32) -> NDArray[np.float64]:
    """x in the f16 numbers of a row whose largest value gets the exponent 14."""
    largest = np.abs(x).max(axis=1, keepdims=True).astype(np.float64)
    factor = 2.0 ** (14 - np.floor(np.log2(np.where(largest > 0, largest, 1))))
    return (x * factor).astype(np.float16).astype(np.float64) / factor


def expected(
    pack: _engine.gpu.Pack, w: NDArray[np.uint8], dtype: str, n_out: int, x: F32, activations: str, started: list[str]
) -> tuple[NDArray[np.float64], NDArray[np.float64], str]:
    """The expected product for the launched kernels, the scale of its errors, and the family of its tolerance."""
    wide = "F16" if pack.target in gpu_packs.F16_ONLY else "BF16"  # what its matrix units take
    if dtype == FP8 and any(FP8_KERNEL.match(kernel) for kernel in started):
        return (*reference.linear(w, dtype, n_out, fp8.rounded_x(x), "f32"), "matmul_fp8")
    if "expand_weights_kernel" in started and dtype in EXPANDED_TYPES:
        weights = rounded_to(reference.decode(w, dtype), wide).view(np.uint8)
        return (*reference.linear(weights, "F32", n_out, rounded_to(x, wide), "f32"), "matmul_halves")
    if dtype in {*BLOCK_TYPES, *FEW_TYPES} - {*PLAIN_TYPES}:
        if activations == "f32":
            return (*reference.linear(w, dtype, n_out, x, "f32"), "linear_int16")
        if len(x) <= MAX_SPECULATION_ROWS:
            is_skinny = any(kernel.startswith("gemm_skinny") and f"_{dtype.lower()}_" in kernel for kernel in started)
            return (*reference.linear(w, dtype, n_out, x, "int8"), "matmul_skinny" if is_skinny else "linear")
        if any(kernel.startswith(f"gemm_sm90_{dtype.lower()}_") for kernel in started):
            return (*reference.linear(w, dtype, n_out, scaled_to_f16(x), "f32"), "matmul_f16_codes")
        weights = rounded_to(reference.decode(w, dtype), wide).view(np.uint8)
        return (*reference.linear(weights, "F32", n_out, rounded_to(x, wide), "f32"), "matmul_wide")
    if dtype == "F32":
        return (*reference.linear(w, dtype, n_out, x, "f32"), "linear")
    x = rounded_to(x, "F16" if dtype == "F16" else wide)
    return (*reference.linear(w, dtype, n_out, x, "f32"), "matmul_halves")


def moved(w: NDArray[np.uint8], dtype: str, x: F32) -> NDArray[np.float64] | float:
    """The change of a result if the kernel rounds two values of x, halfway between codes, the other way."""
    if dtype in PLAIN_TYPES:
        return 0
    n_out = reference.decode(w, dtype).size // x.shape[1]
    return 2 * reference.moved_code(w, dtype, n_out, x)


def odd_width(dtype: str, rng: np.random.Generator) -> int:
    """A width that is not a multiple of any tile; for plain numbers not even of 16 bytes."""
    if dtype in PLAIN_TYPES:
        return int(rng.integers(1, 200))
    values = reference.block_size(dtype)[0]
    return values * int(rng.integers(1, 4 if values == 256 else 14))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("dtype", "activations"), PAIRS)
def test_product(pack: _engine.gpu.Pack, dtype: str, activations: str, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for n_out in (int(rng.integers(1, 40)), int(rng.integers(129, 150))):
        n_in = odd_width(dtype, rng)
        w = random_weights(dtype, n_out * n_in, rng)
        x = rng.normal(size=(rows, n_in)).astype(np.float32)
        add = rng.normal(size=(rows, n_out)).astype(np.float32) if n_out % 2 else None
        got = ops.linear(w, dtype, n_out, n_in, x, add, activations, pack=pack)
        started = ops.take_started(pack)
        is_by_row = dtype == "F32" and rows <= 8  # small matrices of F32
        assert any(kernel.startswith("gemm_") for kernel in started) != is_by_row, started
        want, scale, family = expected(pack, w, dtype, n_out, x, activations, started)
        if add is not None:
            want, scale = want + add, scale + np.abs(add)
        check(got, want, scale, family, f"{rows} rows, n_out {n_out}, n_in {n_in}")


@pytest.mark.parametrize("rows", (12, 33, 64, 65, 130))
@pytest.mark.parametrize("dtype", EXPANDED_TYPES)
def test_expanded(pack: _engine.gpu.Pack, pack_folder: Path, dtype: str, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_out, n_in = int(rng.integers(1, 150)), odd_width(dtype, rng)
    w = random_weights(dtype, n_out * n_in, rng)
    x = rng.normal(size=(rows, n_in)).astype(np.float32)
    got = ops.linear(w, dtype, n_out, n_in, x, pack=pack)
    started = ops.take_started(pack)
    has_skinny = gpu_packs.has_kernel(gpu_packs.manifest_of(pack_folder), f"gemm_skinny_{dtype.lower()}_")
    is_skinny = has_skinny and rows <= (48 if dtype == "NVFP4" else 32) and n_in % 256 == 0
    manifest = gpu_packs.manifest_of(pack_folder)
    is_fp8 = dtype == FP8 and rows > 64 and any(gpu_packs.has_kernel(manifest, kernel) for kernel in FP8_KERNELS)
    assert ("expand_weights_kernel" in started) != (is_skinny or is_fp8)
    want, scale, family = expected(pack, w, dtype, n_out, x, "int8", started)
    check(got, want, scale, family, f"{rows} rows, n_out {n_out}, n_in {n_in}")


@pytest.fixture(scope="session", params=FP8_KERNELS)
def fp8_kernel(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def fp8_pack(pack_folder: Path, fp8_kernel: str) -> _engine.gpu.Pack:
    """A pack with one of the kernels for prompts of fp8."""
    others = "|".join(kernel for kernel in FP8_KERNELS if kernel != fp8_kernel)
    manifest = gpu_packs.manifest_without(pack_folder, others)
    if not gpu_packs.has_kernel(manifest, fp8_kernel):
        pytest.skip(f"{manifest['target']} has no {fp8_kernel}")
    return gpu_packs.load(pack_folder, manifest)


@pytest.mark.first_case
@pytest.mark.parametrize(("rows", "n_out", "n_in"), [(65, 3, 128), (130, 150, 640), (301, 129, 384), (70, 520, 1152)])
def test_fp8_prompt(fp8_pack: _engine.gpu.Pack, fp8_kernel: str, rows: int, n_out: int, n_in: int, seed: int) -> None:
    """x is rounded to e4m3 with a scale per 128 values; blocks of any size, and blocks of zeros."""
    rng = np.random.default_rng(seed)
    w = random_weights(FP8, n_out * n_in, rng)
    x = rng.normal(size=(rows, n_in)).astype(np.float32)
    blocks = x.reshape(rows, -1, 128)
    blocks *= 2.0 ** rng.integers(-40, 40, size=(rows, 1, 1)).astype(np.float32)
    blocks[rng.random(blocks.shape[:2]) < 0.1] = 0
    add = rng.normal(size=(rows, n_out)).astype(np.float32) * np.abs(x).max(axis=1, keepdims=True)
    got = ops.linear(w, FP8, n_out, n_in, x, add, pack=fp8_pack)
    started = ops.take_started(fp8_pack)
    assert started[:2] == ["cast_rows_f8_kernel", fp8_kernel]
    want, scale, family = expected(fp8_pack, w, FP8, n_out, x, "int8", started)
    assert family == "matmul_fp8"
    for row in range(rows):
        check(got[row], want[row] + add[row], scale[row] + np.abs(add[row]), family, f"row {row}")


def fp8_sums(kernel: str, x: F32, w: NDArray[np.uint8]) -> F32:
    """The sums of 128 products that a kernel's matrix units compute. x: e4m3 numbers; w: their codes."""
    values = reference.e4m3_values()
    if "sm90" in kernel:
        return fp8.block_sums(x, values[w])
    codes = np.searchsorted(values[:127], np.abs(x)).astype(np.uint8) | np.where(x < 0, 128, 0).astype(np.uint8)
    sums = np.zeros((len(x), len(w)), np.float32)
    for first in range(0, 128, 32):
        a, b = np.broadcast_arrays(codes[:, None, first : first + 32], w[None, :, first : first + 32])
        sums = narrow_matrix.fp8_sums(a, b, sums, FP8_KERNELS[kernel]).view(np.float32)
    return sums


def test_fp8_sums_are_those_of_the_published_rule(fp8_pack: _engine.gpu.Pack, fp8_kernel: str, seed: int) -> None:
    """Every bit of the sums of 128 products: values of one size, of every size, and sums that cancel."""
    rng = np.random.default_rng(seed)
    rows, n_out = 129, 131
    w = random_weights(FP8, n_out * 128, rng)
    x = rng.normal(size=(rows, 128)).astype(np.float32)
    x[::3] *= 2.0 ** rng.integers(-18, 1, size=x[::3].shape).astype(np.float32)
    x[1::3, 64:] = -x[1::3, :64]
    w.reshape(n_out, 132)[::2, 68:] = w.reshape(n_out, 132)[::2, 4:68]
    got = ops.linear(w, FP8, n_out, 128, x, pack=fp8_pack)
    codes, scale = fp8.round_x(x)
    blocks = w.reshape(n_out, 132)
    sums = fp8_sums(fp8_kernel, codes, blocks[:, 4:])
    want = (sums * scale) * blocks[:, :4].copy().view(np.float32)[:, 0]
    assert np.array_equal(got, want)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_not_a_number_stays_in_its_row_of_fp8(fp8_pack: _engine.gpu.Pack, poison: float) -> None:
    x = np.ones((70, 512), np.float32)
    x[4, 300] = poison
    y = ops.linear(random_weights(FP8, 5 * 512, np.random.default_rng(4)), FP8, 5, 512, x, pack=fp8_pack)
    assert np.array_equal(np.isfinite(y).all(axis=1), np.arange(70) != 4)


@pytest.fixture(scope="session")
def fp4_pack(pack_folder: Path, pack: _engine.gpu.Pack) -> _engine.gpu.Pack:
    if not gpu_packs.has_kernel(gpu_packs.manifest_of(pack_folder), FP4_KERNEL):
        pytest.skip(f"{pack.target} does not multiply fp4")
    return pack


@pytest.mark.first_case
@pytest.mark.parametrize(("rows", "n_out", "n_in"), [(65, 3, 64), (130, 150, 640), (301, 129, 448), (70, 520, 1216)])
def test_fp4_prompt(fp4_pack: _engine.gpu.Pack, rows: int, n_out: int, n_in: int, seed: int) -> None:
    """x is rounded to NVFP4; rows of any size, and blocks of zeros."""
    rng = np.random.default_rng(seed)
    w = random_weights("NVFP4", n_out * n_in, rng)
    x = rng.normal(size=(rows, n_in)).astype(np.float32)
    x *= 2.0 ** rng.integers(-40, 40, size=(rows, 1)).astype(np.float32)
    x.reshape(rows, -1, 16)[rng.random((rows, n_in // 16)) < 0.1] = 0
    x[3] = 0
    add = rng.normal(size=(rows, n_out)).astype(np.float32) * np.abs(x).max(axis=1, keepdims=True)
    got = ops.linear(w, "NVFP4", n_out, n_in, x, add, "fp4", pack=fp4_pack)
    assert ops.take_started(fp4_pack)[:2] == ["cast_rows_fp4_kernel", FP4_KERNEL]
    want, scale = reference.linear(w, "NVFP4", n_out, nvfp4.rounded_x(x), "f32")
    for row in range(rows):
        check(got[row], want[row] + add[row], scale[row] + np.abs(add[row]), "matmul_halves", f"row {row}")


@pytest.mark.parametrize("n_in", (64, 128))
def test_fp4_sums_are_those_of_the_published_rule(fp4_pack: _engine.gpu.Pack, n_in: int, seed: int) -> None:
    """Every bit: scales of every size, subnormal and 0, and sums that cancel."""
    rng = np.random.default_rng(seed)
    rows, n_out = 129, 131
    w = random_weights("NVFP4", n_out * n_in, rng)
    blocks = w.reshape(n_out, -1, 36)
    blocks[::2, :, :4] = rng.integers(0, 127, blocks[::2, :, :4].shape)
    x = rng.normal(size=(rows, n_in)).astype(np.float32)
    x[::3] *= 2.0 ** rng.integers(-18, 1, size=x[::3].shape).astype(np.float32)
    x[1::3, 32:64] = -x[1::3, :32]
    blocks[::4, :, 20:] = blocks[::4, :, 4:20]
    got = ops.linear(w, "NVFP4", n_out, n_in, x, None, "fp4", pack=fp4_pack)
    assert np.array_equal(got, nvfp4.products(w, n_out, np.ones(n_out, np.float32), x))


def test_scales_beyond_fp4_units_become_the_largest(fp4_pack: _engine.gpu.Pack) -> None:
    """A file's 0xff means 480, which a matrix unit would take for NaN: 448."""
    rng = np.random.default_rng(3)
    w = random_weights("NVFP4", 5 * 128, rng)
    at_most = w.copy()
    w.reshape(-1, 36)[:, 1], at_most.reshape(-1, 36)[:, 1] = 0xFF, 0x7E
    x = rng.normal(size=(65, 128)).astype(np.float32)
    got, want = (ops.linear(each, "NVFP4", 5, 128, x, None, "fp4", pack=fp4_pack) for each in (w, at_most))
    assert np.array_equal(got, want)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_not_a_number_stays_in_its_row_of_fp4(fp4_pack: _engine.gpu.Pack, poison: float) -> None:
    x = np.ones((70, 512), np.float32)
    x[4, 300] = poison
    w = random_weights("NVFP4", 5 * 512, np.random.default_rng(4))
    y = ops.linear(w, "NVFP4", 5, 512, x, None, "fp4", pack=fp4_pack)
    assert np.array_equal(np.isfinite(y).all(axis=1), np.arange(70) != 4)


@pytest.mark.parametrize(("dtype", "rows"), [("NVFP4", 1), ("NVFP4", 22), ("NVFP4", 64), ("Q4_K", 65), ("BF16", 65)])
def test_fp4_changes_only_prompts_of_nvfp4(pack: _engine.gpu.Pack, dtype: str, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    w, x = random_weights(dtype, 67 * 256, rng), rng.normal(size=(rows, 256)).astype(np.float32)
    got, want = (ops.linear(w, dtype, 67, 256, x, None, activations, pack=pack) for activations in ("fp4", "int8"))
    assert np.array_equal(got, want)


@pytest.fixture(scope="session")
def pack_of_warps(pack_folder: Path) -> _engine.gpu.Pack:
    """A pack without the wgmma kernels, which chips with wgmma prefer for prompts."""
    manifest = gpu_packs.manifest_without(pack_folder, ".*_sm90_.*")
    if not gpu_packs.has_kernel(manifest, "gemm_wide"):
        pytest.skip(f"{manifest['target']} has wgmma for every prompt")
    return gpu_packs.load(pack_folder, manifest)


@pytest.mark.parametrize("dtype", [*BLOCK_TYPES, "F16", "BF16"])
def test_prompt_without_wgmma(pack_of_warps: _engine.gpu.Pack, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_out, n_in, rows = int(rng.integers(257, 300)), odd_width(dtype, rng), int(rng.integers(129, 140))
    w = random_weights(dtype, n_out * n_in, rng)
    x = rng.normal(size=(rows, n_in)).astype(np.float32)
    got = ops.linear(w, dtype, n_out, n_in, x, pack=pack_of_warps)
    want, scale, family = expected(pack_of_warps, w, dtype, n_out, x, "int8", ops.take_started(pack_of_warps))
    check(got, want, scale, family, f"{rows} rows, n_out {n_out}, n_in {n_in}")


@pytest.mark.parametrize("dtype", ["Q4_K", "Q6_K", "BF16"])
def test_prompt_of_many_tiles(pack: _engine.gpu.Pack, dtype: str, seed: int) -> None:
    """Every block gets whole tiles; the remaining tiles are split among blocks."""
    rng = np.random.default_rng(seed)
    n_out, n_in, rows = (4161, 2048, 1031) if pack.target != "sim" else (int(rng.integers(590, 640)), 512, 70)
    w = random_weights(dtype, n_out * n_in, rng)
    x = rng.normal(size=(rows, n_in)).astype(np.float32)
    add = rng.normal(size=(rows, n_out)).astype(np.float32)
    got = ops.linear(w, dtype, n_out, n_in, x, add, pack=pack)
    want, scale, family = expected(pack, w, dtype, n_out, x, "int8", ops.take_started(pack))
    check(got, want + add, scale + np.abs(add), family, f"{rows} rows, n_out {n_out}")


@pytest.mark.parametrize("dtype", BLOCK_TYPES)
def test_prompt_of_rows_of_any_size(pack: _engine.gpu.Pack, dtype: str, seed: int) -> None:
    """Rows far beyond the range of f16, and rows of zeros."""
    rng = np.random.default_rng(seed)
    rows, n_out, n_in = 75, 33, 768
    w = random_weights(dtype, n_out * n_in, rng)
    x = (rng.normal(size=(rows, n_in)) * 2.0 ** rng.integers(-60, 60, size=(rows, 1))).astype(np.float32)
    x[7] = 0
    got = ops.linear(w, dtype, n_out, n_in, x, pack=pack)
    want, scale, family = expected(pack, w, dtype, n_out, x, "int8", ops.take_started(pack))
    for row in range(rows):
        check(got[row], want[row], scale[row], family, f"row {row}")


@pytest.mark.parametrize(
    ("dtypes", "rows", "activations"),
    [
        (("Q4_K", "Q4_K", "Q6_K"), 22, "int8"),
        (("Q8_0", "Q8_0", "Q8_0", "Q8_0"), 5, "int8"),
        (("Q4_0", "BF16", "F16", "F32"), 9, "f32"),
        (("Q4_K", "BF16", "F16", "Q6_K"), 66, "int8"),
        (("Q5_K", "Q4_K", "Q5_K", "BF16"), 66, "int8"),
        (("Q3_K", "Q4_K", "Q3_K", "Q6_K"), 17, "int8"),
        (("NVFP4", FP8, "BF16", "NVFP4"), 19, "int8"),
    ],
)
def test_group(pack: _engine.gpu.Pack, dtypes: tuple[str, ...], rows: int, activations: str, seed: int) -> None:
    """Products of one or several types; `add` is in the memory of y."""
    rng = np.random.default_rng(seed)
    n_in = 256
    n_out = [130, 9, 1, 129][: len(dtypes)]
    weights, x, add = group(rng, list(dtypes), n_out, n_in, rows)
    got = ops.linear_group(weights, list(dtypes), n_out, n_in, x, add, activations, pack=pack)
    started = ops.take_started(pack)
    for y, w, dtype, n, a in zip(got, weights, dtypes, n_out, add, strict=True):
        want, scale, family = expected(pack, w, dtype, n, x, activations, started)
        check(y, want + a, scale + np.abs(a), family, dtype)


@pytest.fixture(scope="session", params=(True, False), ids=("clusters", "blocks"))
def skinny_pack(pack_folder: Path, request: pytest.FixtureRequest) -> _engine.gpu.Pack:
    manifest = gpu_packs.manifest_of(pack_folder)
    if not gpu_packs.has_kernel(manifest, "gemm_skinny"):
        pytest.skip(f"{manifest['target']} has no kernels for few rows")
    if request.param and not manifest["capabilities"]["clusters"]:
        pytest.skip(f"{manifest['target']} has no clusters")
    manifest["capabilities"]["clusters"] = request.param
    return gpu_packs.load(pack_folder, manifest)


@pytest.mark.parametrize(
    ("dtype", "rows", "n_in"),
    [case if i % 3 == 0 else pytest.param(*case, marks=pytest.mark.slow) for i, case in enumerate(FEW_CASES)],
)
def test_few_rows_in_slices(skinny_pack: _engine.gpu.Pack, dtype: str, rows: int, n_in: int, seed: int) -> None:
    """Split-K: several blocks share each sum and wait for each other; they reset their counter for the next product."""
    pack = skinny_pack
    rng = np.random.default_rng(seed)
    n_out = int(rng.integers(40, 60)) if pack.target == "sim" else int(rng.integers(40, 60)) * 97
    w = random_weights(dtype, n_out * n_in, rng)
    x = rng.normal(size=(rows, n_in)).astype(np.float32) * 2.0 ** rng.integers(-40, 40, size=(rows, 1))
    x = x.astype(np.float32)
    got = ops.linear(w, dtype, n_out, n_in, x, pack=pack)
    want, scale, family = expected(pack, w, dtype, n_out, x, "int8", ops.take_started(pack))
    for row in range(rows):
        check(got[row], want[row], scale[row], family, f"row {row} of {rows}, n_out {n_out}, n_in {n_in}")
    assert np.array_equal(ops.linear(w, dtype, n_out, n_in, x, pack=pack), got)


def test_few_rows_of_scales_of_any_size(skinny_pack: _engine.gpu.Pack, seed: int) -> None:
    """f16 scales from the smallest to the largest, of both signs, also with different scales within 256 values."""
    rng = np.random.default_rng(seed)
    n_out, n_in = 75, 1024
    blocks = random_weights("Q8_0", n_out * n_in, rng).reshape(n_out, n_in // 32, 34)
    exponents = np.linspace(-24, 15, n_out)[:, None] - rng.integers(0, 12, size=(n_out, n_in // 32))
    d = (rng.choice([-1, 1], exponents.shape) * 2.0**exponents * rng.uniform(1, 2, exponents.shape)).astype(np.float16)
    blocks[:, :, :2] = d[:, :, None].view(np.uint8).reshape(n_out, -1, 2)
    x = rng.normal(size=(9, n_in)).astype(np.float32)
    got = ops.linear(blocks.reshape(-1), "Q8_0", n_out, n_in, x, pack=skinny_pack)
    want, scale, family = expected(
        skinny_pack, blocks.reshape(-1), "Q8_0", n_out, x, "int8", ops.take_started(skinny_pack)
    )
    for out in range(n_out):
        check(got[:, out], want[:, out], scale[:, out], family, f"scales near {float(np.abs(d[out]).max())}")


@pytest.mark.parametrize("rows", [11, 19])
@pytest.mark.parametrize("dtype", FEW_TYPES)
def test_few_rows_of_a_group(skinny_pack: _engine.gpu.Pack, dtype: str, rows: int, seed: int) -> None:
    """Tiles of 16 outputs that a product does not fill."""
    rng = np.random.default_rng(seed)
    n_in, n_out = 1536, [75, 1, 40, 9]
    weights, x, add = group(rng, len(n_out) * [dtype], n_out, n_in, rows)
    got = ops.linear_group(weights, [dtype] * len(n_out), n_out, n_in, x, add, pack=skinny_pack)
    started = ops.take_started(skinny_pack)
    assert any(kernel.startswith(f"gemm_skinny_{dtype.lower()}") for kernel in started)
    for y, w, n, a in zip(got, weights, n_out, add, strict=True):
        want, scale, family = expected(skinny_pack, w, dtype, n, x, "int8", started)
        check(y, want + a, scale + np.abs(a), family, f"n_out {n}")


@pytest.mark.parametrize("rows", [2, 9, 22, 27])
@pytest.mark.parametrize("dtypes", [("Q6_K", "Q4_K", "Q4_K", "Q6_K"), ("Q5_K", "Q6_K")])
def test_few_rows_of_two_types_in_one_launch(
    skinny_pack: _engine.gpu.Pack, dtypes: tuple[str, ...], rows: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    n_in, n_out = 256 * int(rng.integers(1, 9)), [int(n) for n in rng.integers(1, 400, len(dtypes))]
    weights, x, add = group(rng, list(dtypes), n_out, n_in, rows)
    ops.take_started(skinny_pack)  # clears the record of other tests
    got = ops.linear_group(weights, list(dtypes), n_out, n_in, x, add, pack=skinny_pack)
    started = ops.take_started(skinny_pack)
    of_both = f"gemm_skinny_{'q5_k' if 'Q5_K' in dtypes else 'q4_k'}_q6_k_"
    assert [kernel.startswith(of_both) for kernel in started if kernel.startswith("gem")] == [True], started
    for y, dtype, w, n, a in zip(got, dtypes, weights, n_out, add, strict=True):
        want, scale = reference.linear(w, dtype, n, x, "int8")
        check(y, want + a, scale + np.abs(a), "matmul_skinny", f"{dtype}, n_out {n} of {n_out}, n_in {n_in}")


def chain(
    pack: _engine.gpu.Pack, weights: list[NDArray[np.uint8]], dtype: str, n_out: int, n_in: int, x: F32,
    add: F32 | None, norm: F32 | None, eps: float, last: NDArray[np.uint8], last_dtype: str, n_last: int,
) -> tuple[F32, F32]:  # fmt: skip
    """Fused skinny GEMMs. Returns (y = x w^T + add, product of `last` with the norm of y), or with `norm` None and two
    weights (NaN, product of `last` with silu(x w0^T) * x w1^T)."""
    n, rows = len(weights), len(x)
    products = ops.products_of(weights, n * [dtype], n * [n_out], n_in, x, None if add is None else n * [add], "int8")
    between: dict[str, Any] = {"rows": rows, "dim": n_out}
    if norm is None:
        name, inputs = "swiglu", {"gate": (0, 0, "y"), "up": (0, 1, "y")}
    else:
        name, inputs = "rms_norm", {"x": (0, 0, "y"), "w": norm, "eps": eps, "heads": 1, "row_stride": n_out}
    reader = ops.reader((1, 0, "y"), last, last_dtype, n_last, n_out, rows)
    calls = [("linear", products, []), (name, [between | inputs], [reader])]
    (first, _), (_, [of_last]) = ops.run_calls(calls, pack=pack)
    return first[0]["y"], of_last["y"]


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("dtype", "last_dtype", "rows", "n_in", "n_out"), [case for case in CHAINS if case[1] != "F16"]
)
def test_few_rows_to_a_norm(
    skinny_pack: _engine.gpu.Pack, dtype: str, last_dtype: str, rows: int, n_in: int, n_out: int, seed: int
) -> None:
    """The next product reads the norm of y, which is fused: no separate kernel computes it."""
    pack, eps, n_last = skinny_pack, 1e-5, 75
    rng = np.random.default_rng(seed)
    w, last = random_weights(dtype, n_out * n_in, rng), random_weights(last_dtype, n_last * n_out, rng)
    x = rng.normal(size=(rows, n_in)).astype(np.float32)
    add = (rng.normal(size=(rows, n_out)) * 2.0 ** rng.integers(-20, 20, size=(rows, 1))).astype(np.float32)
    norm = rng.normal(size=n_out).astype(np.float32)
    run = functools.partial(chain, pack, [w], dtype, n_out, n_in, x, add, norm, eps, last, last_dtype)
    ops.take_started(pack)
    y, got = run(n_last)
    started = ops.take_started(pack)
    assert len(started) == 3  # x is rounded once
    want, scale, family = expected(pack, w, dtype, n_out, x, "int8", started)
    check(y, want + add, scale + np.abs(add), family, "y")
    factor = 1 / np.sqrt((y.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + eps)  # after what is rounded
    want, scale, family = expected(pack, last, last_dtype, n_last, y * norm, "int8", started)
    check(got, want * factor, scale * factor, family, "behind the norm", moved(last, last_dtype, y * norm) * factor)
    assert all(np.array_equal(a, b) for a, b in zip(run(n_last), (y, got), strict=True))


@pytest.mark.first_case
@pytest.mark.parametrize(("dtype", "last_dtype", "rows", "n_in", "n_out"), CHAINS)
def test_few_rows_to_a_gate(
    skinny_pack: _engine.gpu.Pack, dtype: str, last_dtype: str, rows: int, n_in: int, n_out: int, seed: int
) -> None:
    pack, n_last = skinny_pack, 75
    rng = np.random.default_rng(seed)
    weights = [random_weights(dtype, n_out * n_in, rng) for _ in range(2)]
    last = random_weights(last_dtype, n_last * n_out, rng)
    x = rng.normal(size=(rows, n_in)).astype(np.float32)
    x /= 2 * ops.linear(weights[0], dtype, n_out, n_in, x, pack=pack).std()  # so that gates are neither open nor shut
    ops.take_started(pack)
    y, got = chain(pack, weights, dtype, n_out, n_in, x, None, None, 0.0, last, last_dtype, n_last)
    started = ops.take_started(pack)
    assert len(started) == 3 and np.isnan(y).all()
    gate, up = (a.astype(np.float64) for a in ops.linear_group(weights, 2 * [dtype], 2 * [n_out], n_in, x, pack=pack))
    gated = (gate / (1 + np.exp(-gate)) * up).astype(np.float32)
    want, scale, family = expected(pack, last, last_dtype, n_last, gated, "int8", started)
    if last_dtype in PLAIN_TYPES:
        family = "matmul_wide"  # a gate near the middle of two 16-bit numbers may be rounded to either
    check(got, want, scale, family, "behind the gate", moved(last, last_dtype, gated))


@pytest.mark.parametrize("activations", ["int8", "f32"])
@pytest.mark.parametrize("dtype", BLOCK_TYPES)
def test_rows_are_those_of_the_mat_vec(pack: _engine.gpu.Pack, dtype: str, activations: str, seed: int) -> None:
    """Verifying a tree multiplies the same rounded x as decoding a single token."""
    rng = np.random.default_rng(seed)
    n_out, n_in = 21, 768
    w = random_weights(dtype, n_out * n_in, rng)
    x = rng.normal(size=(6, n_in)).astype(np.float32)
    run = functools.partial(ops.linear, w, dtype, n_out, n_in, activations=activations, pack=pack)
    got, started = run(x=x), ops.take_started(pack)
    alone = np.concatenate([run(x=row[None]) for row in x])
    _, scale, family = expected(pack, w, dtype, n_out, x, activations, started)
    check(got, alone.astype(np.float64), scale, "linear" if activations == "f32" else family, dtype)


@pytest.mark.parametrize("rows", [2, 70])
@pytest.mark.parametrize("dtype", BLOCK_TYPES)
def test_extreme_codes(pack: _engine.gpu.Pack, dtype: str, rows: int) -> None:
    """All codes and activations at their largest: where narrow sums would clip."""
    for w, x in extreme_codes(dtype, rows):
        got = ops.linear(w, dtype, 1, 256, x, pack=pack)
        want, scale, family = expected(pack, w, dtype, 1, x, "int8", ops.take_started(pack))
        check(got, want, scale, family, dtype)


@pytest.mark.parametrize("rows", [11, 70])
@pytest.mark.parametrize("dtype", ["Q4_K", "Q6_K", "BF16", "F32"])
@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_not_a_number_stays_in_its_row(pack: _engine.gpu.Pack, dtype: str, rows: int, poison: float) -> None:
    x = np.ones((rows, 512), np.float32)
    x[4, 300] = poison
    w = random_weights(dtype, 5 * 512, np.random.default_rng(4))
    y = ops.linear(w, dtype, 5, 512, x, pack=pack)
    is_clipped = np.isinf(poison) and dtype == "BF16" and pack.target in gpu_packs.F16_ONLY  # to f16's largest number
    is_clipped |= np.isinf(poison) and rows > 64 and pack.target in gpu_packs.F16_ONLY
    assert np.array_equal(np.isfinite(y).all(axis=1), (np.arange(rows) != 4) | is_clipped)


def test_what_is_refused(pack: _engine.gpu.Pack) -> None:
    def product(dtype: str, n_bytes: int, n_in: int) -> None:
        ops.linear(np.zeros(n_bytes, np.uint8), dtype, 1, n_in, np.zeros((2, n_in), np.float32), pack=pack)

    with pytest.raises(InvalidRequestError, match=r"Q4_K rows are multiples of 256 values, got \[1, 100\]"):
        product("Q4_K", 0, 100)
