"""Ops run by the names of their fields: what is inferred, what is refused, and by which name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lucebox import _kernels
from lucebox.errors import InvalidRequestError, UnsupportedError
from numpy.typing import NDArray


def run(op: str, **fields: Any) -> dict[str, Any]:
    """The outputs of an op of these fields alone."""
    [([got], [])] = _kernels.ops.run([(op, [fields], [])])
    return got


def ones(*shape: int) -> NDArray[np.float32]:
    return np.ones(shape, np.float32)


def norm(**changes: Any) -> dict[str, Any]:
    """The fields of an RmsNorm of [2, 3, 8] values."""
    return {"x": ones(2, 3, 8), "w": ones(8), "eps": 1e-6, **changes}


def test_numbers_follow_from_arrays_or_agree_with_them() -> None:
    (name,) = got = run("rms_norm", **norm())
    assert name == "y" and got["y"].shape == (2, 3, 8)
    assert np.array_equal(run("rms_norm", **norm(rows=2, dim=8, head_stride=8))["y"], got["y"])


def test_an_output_takes_the_memory_of_an_input() -> None:
    o, z, w = np.random.default_rng(0).normal(size=(3, 2, 3, 8)).astype(np.float32)
    fields = {"o": o, "z": z, "w": w[0, 0].copy(), "eps": 1e-6}
    before = o.copy()
    assert np.array_equal(run("gated_rms_norm", **fields, y="o")["y"], run("gated_rms_norm", **fields)["y"])
    assert np.array_equal(o, before), "the caller's array stays as it is"


def test_arrays_of_one_row_share_memory() -> None:
    """q and k are contiguous, followed by 3 values that the op must not write."""
    qk, gates = np.random.default_rng(0).normal(size=(5, 35)).astype(np.float32), ones(5, 2)
    q, k = (qk[:, i : i + 16].reshape(5, 2, 8) for i in (0, 16))
    assert np.shares_memory(q, qk) and np.shares_memory(k, qk)
    fields = {"g": gates, "beta": gates, "a_neg": -ones(2), "dt_bias": ones(2), "eps": 1e-6}
    got = run("delta_prepare", q=q, k=k, **fields)
    alone = run("delta_prepare", q=q.copy(), k=k.copy(), **fields)
    assert all(np.array_equal(got[name], alone[name]) for name in ("q", "k", "g", "beta"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"w": ones(7)}, r"\[rms_norm\] w must have shape \[8\], got \[7\]"),
        ({"x": ones(2, 8)}, r"\[rms_norm\] x must have shape \[.*\], got \[2, 8\]"),
        ({"x": np.ones((2, 3, 8))}, r"\[rms_norm\] x must be float32, got float64"),
        ({"x": "w"}, r"\[rms_norm\] x must be an array"),
        ({"x": None}, r"\[rms_norm\] x is missing"),
        ({"eps": None}, r"\[rms_norm\] eps is missing"),
        ({"rows": 3}, r"\[rms_norm\] x must have shape \[3, 3, 8\], got \[2, 3, 8\]"),
        ({"head_stride": 9}, r"\[rms_norm\] x must have a stride of 9 values along axis 1, got 8"),
        ({"x": ones(8, 3, 2).T}, r"\[rms_norm\] x must have a stride of 1 values along axis 2, got 6"),
        ({"w": ones(16)[::2]}, r"\[rms_norm\] w must have a stride of 1 values along axis 0, got 2"),
        ({"v": ones(8)}, r"\[rms_norm\] has no field v; its fields are rows, heads, dim, .*, x, w, y, rounded"),
        ({"y": ones(2, 3, 8)}, r"\[rms_norm\] y is an output: it may be given the name of an input"),
        ({"y": "w"}, r"\[rms_norm\] y does not fit w"),
        ({"y": "u"}, r"\[rms_norm\] no array is named u"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        run("rms_norm", **norm(**changes))


def test_indices_out_of_range_are_refused() -> None:
    table = {"table": np.zeros(4 * 34, np.uint8), "type": "Q8_0", "dim": 32, "scale": 1.0}
    with pytest.raises(InvalidRequestError, match=r"\[embed\] ids has 4, which is not in \[0, 4\)"):
        run("embed", **table, ids=np.array([3, 4], np.int32))
    with pytest.raises(InvalidRequestError, match=r"\[embed\] ids must be an array"):
        run("embed", **table, rows=2, ids=3)
    with pytest.raises(InvalidRequestError, match=r"\[embed\] rows of table must have values"):
        run("embed", **{**table, "dim": None}, ids=np.zeros(1, np.int32))
    pages = np.zeros((1, 1, 64, 8), np.float32)
    cache = {"k_pages": pages, "v_pages": pages.copy(), "k_type": "F32", "v_type": "F32", "head_dim": 8, "key_tail": 0}
    rows = {"k": ones(2, 1, 8), "v": ones(2, 1, 8), "page_table": np.zeros(1, np.int32)}
    with pytest.raises(InvalidRequestError, match="the page table holds 64 slots, 65 are needed"):
        run("kv_append", **cache, **rows, n_past=63)


def test_unknown_ops_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match='there is no op "softmax" here'):
        run("softmax")
    with pytest.raises(UnsupportedError, match=r"\[round_rows\] runs on devices only"):
        run("round_rows", x=ones(1, 32), y=8)
