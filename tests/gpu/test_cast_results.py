"""A norm or a SwiGlu of a prompt that casts its result to the x of its GEMMs gives the bits of two launches."""

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
SHAPES = [(65, 256), (66, 3328), (70, 14592)]  # rows, n_in; the last one takes two passes


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


@pytest.mark.parametrize("op", ["rms_norm", "gated_rms_norm", "swiglu"])
@pytest.mark.parametrize(("rows", "n_in"), SHAPES)
@pytest.mark.parametrize("dtype", FORMS)
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
