"""Matrix products on every instruction set of this machine against fp64 from the same inputs."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pytest
from linear_cases import check, extreme_codes, group, shapes_of
from lucebox import _engine, _kernels
from lucebox.errors import InvalidRequestError
from lucebox.selftest import ops
from reference import linear as reference
from reference.linear import BLOCK_TYPES, CODEBOOK_TYPES, FP8, PLAIN_TYPES, random_weights

ISAS = _engine.available_isas()
ROWS = (1, 2, 3, 4, 5, 6, 7, 16, 17, 33)


# Sub-blocks of 16 and of 32 values. One body serves the others too: 45 s.
ALIKE = [dtype for dtype in CODEBOOK_TYPES if dtype not in ("IQ1_M", "IQ3_XXS")]
PRODUCT_TYPES = [
    pytest.param(dtype, marks=pytest.mark.slow if dtype in ALIKE else [])
    for dtype in (*BLOCK_TYPES, *CODEBOOK_TYPES, *PLAIN_TYPES, FP8)
]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activations", ["int8", "f32"])
@pytest.mark.parametrize("dtype", PRODUCT_TYPES)
def test_product(dtype: str, activations: str, isa: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for n_out, n_in in shapes_of(dtype):
        w = random_weights(dtype, n_out * n_in, rng)
        x = rng.normal(size=(max(ROWS), n_in)).astype(np.float32)
        want, scale = reference.linear(w, dtype, n_out, x, "f32" if dtype == FP8 else activations)
        for rows in ROWS:
            y = ops.linear(w, dtype, n_out, n_in, x[-rows:], activations=activations, isa=isa)
            check(y, want[-rows:], scale[-rows:], "linear", f"n_out {n_out} n_in {n_in} rows {rows}")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activations", ["int8", "f32"])
def test_a_row_has_the_same_bits_alone(activations: str, isa: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for dtype in (*BLOCK_TYPES, *PLAIN_TYPES, FP8):
        block = 1 if dtype in PLAIN_TYPES else reference.block_size(dtype)[0]
        n_out, n_in = int(rng.integers(1, 80)), block * int(rng.integers(1, 700 // block + 1))
        w = random_weights(dtype, n_out * n_in, rng)
        x = rng.normal(size=(64, n_in)).astype(np.float32)
        run = partial(ops.linear, w, dtype, n_out, n_in, activations=activations, isa=isa)
        alone = np.concatenate([run(x=x[row : row + 1]) for row in range(64)])
        for rows in (2, 3, 5, 6, 8, int(rng.integers(7, 64)), 64):
            what = f"{dtype} n_out {n_out} n_in {n_in} rows {rows}"
            assert np.array_equal(run(x=x[:rows]).view(np.int32), alone[:rows].view(np.int32)), what


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activations", ["int8", "f32"])
@pytest.mark.parametrize("way", ["factor", "divisor"])
def test_nvfp4_with_scales_of_rows(way: str, activations: str, isa: str, seed: int) -> None:
    """Products, embeddings with the values of the definition, and the bits of a row alone."""
    rng = np.random.default_rng(seed)
    for n_out, n_in in ((1, 64), (37, 320), (70, 4096)):
        by = rng.uniform(0.5, 2, n_out).astype(np.float32)
        blocks = random_weights("NVFP4", n_out * n_in, rng)
        w = reference.scaled_nvfp4(blocks, by) if way == "factor" else reference.scaled_nvfp4(blocks, by, by)
        values = reference.decode_scaled_nvfp4(w, n_out)
        ids = rng.integers(0, n_out, 5).astype(np.int32)
        assert np.array_equal(ops.embed(w, "NVFP4_SCALED", n_in, ids, isa=isa), values[ids])
        x = rng.normal(size=(9, n_in)).astype(np.float32)
        exact = x if activations == "f32" else reference.rounded(x)
        want, scale = reference.linear(values.reshape(-1).view(np.uint8), "F32", n_out, exact, "f32")
        for rows in (1, 2, 3, 9):
            y = ops.linear(w, "NVFP4_SCALED", n_out, n_in, x[-rows:], activations=activations, isa=isa)
            check(y, want[-rows:], scale[-rows:], "linear", f"n_out {n_out} n_in {n_in} rows {rows}")
            alone = ops.linear(w, "NVFP4_SCALED", n_out, n_in, x[-1:], activations=activations, isa=isa)
            assert np.array_equal(y[-1:].view(np.int32), alone.view(np.int32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activations", ["int8", "f32"])
def test_group_add_and_threads(activations: str, isa: str) -> None:
    """A mixed group: each member as if alone, add fused even onto y itself, the same bits from one thread and two."""
    rng = np.random.default_rng(1)
    dtypes, n_out, n_in, rows = ["Q4_1", "Q6_K", "BF16"], [200, 72, 130], 512, 9
    weights, x, add = group(rng, dtypes, n_out, n_in, rows)
    products = (weights, dtypes, n_out, n_in, x, add, activations)
    results = [ops.linear_group(*products, isa=isa, threads=threads) for threads in (1, 2)]
    for i, (w, dtype, n) in enumerate(zip(weights, dtypes, n_out, strict=True)):
        want, scale = reference.linear(w, dtype, n, x, activations)
        check(results[0][i], want + add[i], scale + np.abs(add[i]), "linear", dtype)
        assert np.array_equal(results[0][i], results[1][i])
        assert np.array_equal(results[0][i], ops.linear(w, dtype, n, n_in, x, add[i], activations, isa=isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["Q8_0", "Q4_1", "Q6_K", "Q2_K"])
def test_row_does_not_depend_on_its_batch(dtype: str, isa: str) -> None:
    """Alone or in a pair, and among three and more, a row gives the same bits whatever rides along."""
    rng = np.random.default_rng(2)
    n_out, n_in = 40, 768
    w = random_weights(dtype, n_out * n_in, rng)
    x = rng.normal(size=(33, n_in)).astype(np.float32)
    few = ops.linear(w, dtype, n_out, n_in, x[:1], isa=isa)
    many = ops.linear(w, dtype, n_out, n_in, x, isa=isa)
    assert np.array_equal(ops.linear(w, dtype, n_out, n_in, x[:2], isa=isa)[:1], few)
    for rows in (3, 4, 5, 6, 7, 8, 11, 32):
        assert np.array_equal(ops.linear(w, dtype, n_out, n_in, x[:rows], isa=isa), many[:rows])


@pytest.mark.parametrize("isa", ISAS)
def test_extreme_codes_do_not_saturate(isa: str) -> None:
    """All codes and activations at their largest: where 16-bit partial sums would clip."""
    for dtype, rows in product(BLOCK_TYPES, (1, 8)):
        for w, x in extreme_codes(dtype, rows):
            got = ops.linear(w, dtype, 1, x.shape[1], x, isa=isa)
            check(got, *reference.linear(w, dtype, 1, x, "int8"), "linear", dtype)


@pytest.mark.parametrize("isa", ISAS)
def test_rounding_of_activations(isa: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(3, 160)).astype(np.float32)
    x[1, 32:64] = 0
    x[2, :32] = np.arange(32) * 0.5  # ties
    x[2, 32:64] = 1e-44  # a scale that rounds to zero
    q, scale, total = _kernels.weights.quantize_q8(x, isa)
    want_q, want_scale = reference.quantize_q8(x)
    assert q.shape == (3, 192) and not q[:, 160:].any() and not scale[:, 5:].any()
    assert np.array_equal(q[:, :160], want_q)
    assert np.array_equal(scale[:, :5], want_scale)
    assert np.array_equal(total, q.reshape(3, 6, 32).astype(np.int32).sum(axis=2))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rows", [1, 6])
def test_not_a_number_stays_one(rows: int, poison: float, isa: str) -> None:
    x = np.ones((rows, 64), np.float32)
    x[0, 40] = poison
    w = random_weights("Q4_1", 3 * 64, np.random.default_rng(4))
    y = ops.linear(w, "Q4_1", 3, 64, x, isa=isa)
    assert np.isnan(y[0]).all() and np.isfinite(y[1:]).all()


def test_wrong_sizes_are_refused() -> None:
    w = np.zeros(36, np.uint8)
    with pytest.raises(InvalidRequestError, match=r"w \[1, 32\] of Q4_0 is 18 bytes, got 36"):
        ops.linear(w, "Q4_0", 1, 32, np.zeros((1, 32), np.float32))
    with pytest.raises(InvalidRequestError, match=r"x must have shape \[1, 32\], got \[1, 31\]"):
        ops.linear(w, "Q4_0", 2, 32, np.zeros((1, 31), np.float32))
