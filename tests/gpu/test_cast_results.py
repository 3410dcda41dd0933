"""Fused ops of a prompt on wgmma give the bits of separate launches: a norm or a SwiGlu that casts its result to the x
of its GEMMs, and a SwiGlu in the epilogue of gate and up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpu_packs
import numpy as np
import pytest
from lucebox import _engine
from lucebox.selftest import ops
from numpy.typing import NDArray
from reference.linear import random_weights

F32 = NDArray[np.float32]
HEAD = 128  # of a gated norm that is fused

FORMS = {"Q4_K": "f16", "F8_E4M3": "f8", "BF16": "plain", "F16": "plain"}
LONG = (70, 14592)  # takes two passes
SHAPES = [(65, 256), (66, 3328), LONG]  # rows, n_in


@pytest.fixture(scope="session")
def cast_pack(pack: _engine.gpu.Pack, pack_folder: Path) -> _engine.gpu.Pack:
    if not gpu_packs.has_kernel(gpu_packs.manifest_of(pack_folder), "cast_swiglu_"):
        pytest.skip(f"{pack.target} has no wgmma")
    return pack


def inputs(op: str, rows: int, dim: int, rng: np.random.Generator, head: int = HEAD) -> dict[str, Any]:
    """Fields of an op. Norms get integers, whose squares have the same sum in any order."""
    wide = 2.0 ** rng.integers(-12, 12, size=(rows, 1))
    numbers = rng.integers(-9, 10, size=(rows, dim)).astype(np.float32)
    other = (rng.normal(size=(rows, dim)) * wide).astype(np.float32)
    if op == "swiglu":
        return {"gate": (3 * rng.normal(size=(rows, dim))).astype(np.float32), "up": other, "dim": dim}
    if op == "rms_norm":
        w = (rng.normal(size=dim) * 2.0 ** rng.integers(-9, 9, size=dim)).astype(np.float32)
        return {"x": numbers.reshape(rows, 1, dim), "w": w, "eps": 1e-3, "heads": 1, "dim": dim}
    w, shape = rng.normal(size=head).astype(np.float32), (rows, dim // head, head)
    return {"o": numbers.reshape(shape), "z": other.reshape(shape), "w": w, "eps": 1e-3, "heads": shape[1], "dim": head}


@pytest.mark.first_case
@pytest.mark.parametrize("op", ["rms_norm", "gated_rms_norm", "swiglu"])
@pytest.mark.parametrize(
    ("dtype", "rows", "n_in"),
    [
        pytest.param(dtype, *shape, marks=pytest.mark.slow if shape == LONG and dtype != "Q4_K" else [])  # 1 s each
        for dtype in FORMS
        for shape in SHAPES
    ],
)
def test_casting_a_result_changes_no_bit(
    cast_pack: _engine.gpu.Pack, dtype: str, rows: int, n_in: int, op: str, seed: int
) -> None:
    rng, n_out = np.random.default_rng(seed), 7
    w = random_weights(dtype, n_out * n_in, rng)
    fields = {"rows": rows, **inputs(op, rows, n_in, rng)}
    ((result,), _), *_ = ops.run_calls([(op, [fields], [])], pack=cast_pack)
    y = result["y"].reshape(rows, n_in)
    want = ops.linear(w, dtype, n_out, n_in, y, pack=cast_pack)
    ops.take_started(cast_pack)

    reader = ops.reader((0, 0, "y"), w, dtype, n_out, n_in, rows)
    ((alone,), (read,)), *_ = ops.run_calls([(op, [fields], [reader])], pack=cast_pack)
    started = ops.take_started(cast_pack)
    assert started[0] == f"cast_{op}_{FORMS[dtype]}_kernel" and started[1].startswith("gemm_sm90_"), started
    assert np.isnan(alone["y"]).all()  # not stored
    np.testing.assert_array_equal(read["y"], want)


@pytest.mark.parametrize(
    ("op", "dtype", "rows", "head"),
    [("gated_rms_norm", "Q4_K", 65, 64), ("rms_norm", "F32", 65, HEAD), ("swiglu", "Q4_K", 64, HEAD)],
)
def test_other_shapes_are_stored(
    cast_pack: _engine.gpu.Pack, op: str, dtype: str, rows: int, head: int, seed: int
) -> None:
    """Heads of other sizes, products of fp32, and appends of few rows."""
    rng, n_in = np.random.default_rng(seed), 256
    fields = {"rows": rows, **inputs(op, rows, n_in, rng, head)}
    reader = ops.reader((0, 0, "y"), random_weights(dtype, 3 * n_in, rng), dtype, 3, n_in, rows)
    ((alone,), _), *_ = ops.run_calls([(op, [fields], [reader])], pack=cast_pack)
    started = ops.take_started(cast_pack)
    assert not any(kernel.startswith("cast_") and op in kernel for kernel in started), started
    assert np.isfinite(alone["y"]).all()


GATED = ("Q8_0", "Q4_0", "Q4_K", "F16", "BF16", "F8_E4M3")


@pytest.fixture(scope="session")
def gated_pack(pack_folder: Path) -> _engine.gpu.Pack:
    """A pack whose separate products have tiles of 256 outputs, so that gated tiles are chosen for any shape."""
    manifest = gpu_packs.manifest_without(pack_folder, "gemm_sm90_.*_(256x64|128x128)_kernel")
    if not gpu_packs.has_kernel(manifest, "gemm_sm90_"):
        pytest.skip(f"{manifest['target']} has no wgmma")
    return gpu_packs.load(pack_folder, manifest)


@pytest.mark.first_case
@pytest.mark.parametrize(("rows", "n_in", "n_ffn"), [(65, 256, 128), (130, 768, 200), (70, 1280, 500)])
@pytest.mark.parametrize("dtype", GATED)
def test_a_gate_in_the_epilogue_changes_no_bit(
    gated_pack: _engine.gpu.Pack, dtype: str, rows: int, n_in: int, n_ffn: int, seed: int
) -> None:
    pack, rng, n_last = gated_pack, np.random.default_rng(seed), 5
    weights = [random_weights(dtype, n_ffn * n_in, rng) for _ in range(2)]
    last = random_weights("F16", n_last * n_ffn, rng)
    x = rng.normal(size=(rows, n_in)).astype(np.float32)
    x /= 2 * ops.linear(weights[0], dtype, n_ffn, n_in, x, pack=pack).std()  # so that gates are neither open nor shut
    ops.take_started(pack)
    gate, up = ops.linear_group(weights, 2 * [dtype], 2 * [n_ffn], n_in, x, pack=pack)
    separate = ops.take_started(pack)
    assert "gemm_sum_kernel" not in separate  # which would add in another order
    want = ops.linear(last, "F16", n_last, n_ffn, ops.swiglu(gate, up, pack=pack), pack=pack)
    ops.take_started(pack)

    products = ops.products_of(weights, 2 * [dtype], 2 * [n_ffn], n_in, x, None, "int8")
    fields = {"rows": rows, "dim": n_ffn, "gate": (0, 0, "y"), "up": (0, 1, "y")}
    reader = ops.reader((1, 0, "y"), last, "F16", n_last, n_ffn, rows)
    (_, _), (_, (read,)) = ops.run_calls([("linear", products, []), ("swiglu", [fields], [reader])], pack=pack)
    started = ops.take_started(pack)
    assert started[1] == f"gemm_sm90_{dtype.lower()}_gated_kernel", started
    assert not any("swiglu" in kernel for kernel in started), started
    np.testing.assert_array_equal(read["y"], want)


def test_products_that_nothing_gates_are_stored(gated_pack: _engine.gpu.Pack, seed: int) -> None:
    """A SwiGlu of the two products in the other order."""
    pack, rng, rows, dim = gated_pack, np.random.default_rng(seed), 65, 256
    weights = [random_weights("Q4_K", dim * dim, rng) for _ in range(3)]
    x = rng.normal(size=(rows, dim)).astype(np.float32)
    gate, up = ops.linear_group(weights[:2], 2 * ["Q4_K"], 2 * [dim], dim, x, pack=pack)
    want = ops.linear(weights[2], "Q4_K", dim, dim, ops.swiglu(up, gate, pack=pack), pack=pack)
    products = ops.products_of(weights[:2], 2 * ["Q4_K"], 2 * [dim], dim, x, None, "int8")
    fields = {"rows": rows, "dim": dim, "gate": (0, 1, "y"), "up": (0, 0, "y")}
    reader = ops.reader((1, 0, "y"), weights[2], "Q4_K", dim, dim, rows)
    (kept, _), (_, (read,)) = ops.run_calls([("linear", products, []), ("swiglu", [fields], [reader])], pack=pack)
    np.testing.assert_array_equal(kept[0]["y"], gate)
    np.testing.assert_array_equal(read["y"], want)
