"""Recurrent layers and the rope table on a device, against the fp64 recurrence along each path and the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import delta_cases
import gpu_packs
import numpy as np
import pytest
from delta_cases import *  # noqa: F403
from delta_cases import CAP, F32, Inputs, Layer, Shape
from lucebox import _engine
from lucebox.selftest import ops, shapes
from numpy.typing import NDArray
from reference import delta_net as reference
from reference import linear as linear_reference
from reference import rms_norm as norm_reference
from reference.linear import random_weights
from tolerances import distance, tolerance
from tree_data import path_to, random_tree

Pack = _engine.gpu.Pack
ORDERS = pytest.mark.parametrize("order", ("grouped", "tiled"))
MODEL: Shape = (1, 2, 128, 128)
# Small appends and long chains of this shape run on matrix units, if the target has them.
CHAIN: Shape = (2, 4, 128, 32)


@pytest.fixture
def on(pack: Pack) -> dict[str, Any]:
    return {"pack": pack}


def close(got: F32, want: NDArray[np.floating]) -> None:
    delta_cases.close({"pack": None}, got, want)


@pytest.mark.parametrize("rows", (65, 128, 200))
@pytest.mark.parametrize("shape", (*shapes.RECURRENCES[:2], CHAIN))
@ORDERS
def test_long_chain_equals_its_runs(pack: Pack, shape: Shape, order: str, rows: int, seed: int) -> None:
    """A long chain after a tree whose path it folds first leaves the same pending rows as chunk-by-chunk calls."""
    rng = np.random.default_rng(seed)
    layer = Layer({"pack": pack}, shape, rng, order)
    before = Inputs.random(shape, 5, rng, 0.2)
    parent, masks = random_tree(5, rng)
    layer.run(before, parent=parent, ancestors=masks)
    path, inputs, twin = path_to(parent, 4), Inputs.random(shape, rows, rng, 0.05), layer.copy()
    by_runs, folded = [], path
    for first in range(0, rows, CAP):
        by_runs.append(twin.run(inputs.rows(slice(first, first + CAP)), folded))
        folded = np.arange(len(by_runs[-1]), dtype=np.int32)
    state = reference.recurrence(*before.rows(path).parts, layer.S, order)[1]
    got = layer.run(inputs, path)
    close(got, reference.recurrence(*inputs.parts, state, order)[0])
    close(got, np.concatenate(by_runs))
    assert layer.buffer == twin.buffer
    for ours, theirs in zip(layer.everything(len(folded)), twin.everything(len(folded)), strict=True):
        close(ours, theirs)


@pytest.mark.parametrize(("rows", "shape"), ((1, (2, 4, 32, 32)), (31, (2, 4, 32, 32)), (22, CHAIN),
                                             (130, (2, 4, 32, 32)), (130, CHAIN)))  # fmt: skip
def test_hard_inputs(pack: Pack, rows: int, shape: Shape, seed: int) -> None:
    delta_cases.check_hard_inputs({"pack": pack}, np.random.default_rng(seed), shape, rows)


@pytest.mark.parametrize("rows", (64, 65, 66, 200))
def test_conv_over_a_long_chain(pack: Pack, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=(rows, 33)).astype(np.float32), rng.normal(size=(33, 4)).astype(np.float32)
    history, pending = rng.normal(size=(3, 33)).astype(np.float32), rng.normal(size=(CAP, 33)).astype(np.float32)
    sequence = np.concatenate([history, pending[:2]])[-3:]
    y, history, pending = ops.causal_conv(x, w, history, pending, np.arange(2, dtype=np.int32), pack=pack)
    close(y, reference.causal_conv(x, w, sequence))
    last = (rows - 1) // CAP * CAP
    assert np.array_equal(history, np.concatenate([sequence, x[:last]])[-3:])
    assert np.array_equal(pending[: rows - last], x[last:])


@pytest.mark.parametrize(("rows", "kh", "vh", "dk", "dv", "taps"),
                         ((1, 2, 6, 32, 64, 4), (1, 1, 33, 40, 24, 8), (1, 3, 3, 8, 88, 2), (1, 2, 4, 128, 128, 4),
                          (2, 2, 4, 128, 128, 4), (22, 1, 3, 128, 128, 4), (64, 2, 4, 128, 32, 4),
                          (65, 1, 3, 128, 128, 4), (128, 1, 4, 128, 32, 4), (200, 2, 8, 128, 32, 4)))  # fmt: skip
@pytest.mark.parametrize("accepted", (None, [0], [0, 1, 3, 4, 6, 8, 9, 11]))
@pytest.mark.parametrize("is_tree", (False, True))
def test_inputs(
    pack: Pack, rows: int, kh: int, vh: int, dk: int, dv: int, taps: int, accepted: list[int] | None, is_tree: bool,
    seed: int,
) -> None:  # fmt: skip
    """One launch does the convolution and the preparation; the state equals the CPU's exactly."""
    if is_tree and not 1 < rows <= CAP:
        pytest.skip("a chain, as any row alone is")
    rng = np.random.default_rng(seed)
    channels = 2 * kh * dk + vh * dv
    x, w = rng.normal(size=(rows, channels)).astype(np.float32), rng.normal(size=(channels, taps)).astype(np.float32)
    history = rng.normal(size=(taps - 1, channels)).astype(np.float32)
    pending = np.full((CAP, channels), np.nan, np.float32)
    pending[:12] = rng.normal(size=(12, channels)).astype(np.float32)
    g, beta = 5 * rng.normal(size=(2, rows, vh)).astype(np.float32)
    gates = -rng.exponential(size=vh).astype(np.float32), rng.normal(size=vh).astype(np.float32)
    path = None if accepted is None else np.array(accepted, np.int32)
    parent = random_tree(rows, rng)[0] if is_tree else None
    got = ops.delta_inputs(x, w, history, pending, g, beta, *gates, kh, dk, 1e-6, path, parent, pack=pack)
    parts = []
    for first in range(0, rows, CAP):
        part, history, pending = ops.causal_conv(x[first : first + CAP], w, history, pending, path, parent)
        parts.append(part)
        path = np.arange(CAP, dtype=np.int32)
    y, g, beta = ops.delta_prepare(np.concatenate(parts), g, beta, *gates, kh, dk, 1e-6)
    for mine, want in zip((got[0], *got[3:]), (y, g, beta), strict=True):
        close(mine, want)
    last = (rows - 1) % CAP + 1
    assert np.array_equal(got[1], history) and np.array_equal(got[2][:last], pending[:last])


def between_projections(
    pack: Pack, layer: Layer, x: F32, w: F32, history: F32, pending: F32, g: F32, beta: F32, a_neg: F32, dt_bias: F32,
    z: F32, norm_w: F32, eps: float, last: NDArray[np.uint8], last_type: str, n_last: int, **append: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """All ops between a layer's projections, as the engine sends them: the product of `last` with the normed o, and the
    new state: history, pending, S, k_pending, cs_pending, delta."""
    fields = {"x": x, "w": w, "history": history, "pending": pending, "g": g, "beta": beta, "a_neg": a_neg,
              "dt_bias": dt_bias, "n_k_heads": layer.k.shape[2], "dk": layer.k.shape[3],
              "z": z.reshape(len(x), *layer.delta.shape[1:]), "norm_w": norm_w, "eps": eps, **append,
              **ops.delta_state(layer.S, layer.k, layer.cs, layer.delta, layer.buffer, layer.order)}  # fmt: skip
    reader = ops.reader((0, 0, "o"), last, last_type, n_last, z[0].size, len(x))
    [([got], [product])] = ops.run_calls([("delta_net", [fields], [reader])], pack=pack)
    return product["y"], got["history"], got["pending"], *ops.delta_state_after(got)


@pytest.mark.first_case
@pytest.mark.parametrize(("rows", "dtype", "order"), (
    (2, "Q6_K", "grouped"), (7, "Q4_K", "tiled"), (16, "Q4_K", "grouped"), (22, "Q5_K", "tiled"),
    (32, "Q4_K", "grouped"), (1, "Q4_K", "tiled"), (1, "Q4_K", "grouped"), (33, "Q4_K", "tiled"),
    (33, "Q4_K", "grouped"), (9, "Q8_0", "tiled")))  # fmt: skip
def test_between_projections(pack: Pack, pack_folder: Path, rows: int, dtype: str, order: str, seed: int) -> None:
    """A tree after a tree, as the engine sends it. Small appends fuse the norm into the next launch; product and state
    equal the separate ops' results."""
    if dtype == "Q5_K" and not gpu_packs.has_kernel(gpu_packs.manifest_of(pack_folder), "gemm_skinny_q5_k_"):
        pytest.skip("the pack multiplies 5 rows of Q5_K one by one")
    rng = np.random.default_rng(seed)
    shape: Shape = (2, 6, 128, 128)
    kh, vh, dk, dv = shape
    channels, n_last, eps = 2 * kh * dk + vh * dv, 75, 1e-5
    layer = Layer({"pack": pack}, shape, rng, order)
    w, history = rng.normal(size=(channels, 4)).astype(np.float32), rng.normal(size=(3, channels)).astype(np.float32)
    pending = np.full((CAP, channels), np.nan, np.float32)
    gates = -rng.exponential(size=vh).astype(np.float32), rng.normal(size=vh).astype(np.float32)
    norm_w, last = rng.normal(size=dv).astype(np.float32), random_weights(dtype, n_last * vh * dv, rng)
    accepted = np.zeros(0, np.int32)
    for n in (5, rows, 3):
        x = rng.normal(size=(n, channels)).astype(np.float32)
        # Heads of any magnitude: each has a different divisor.
        x[:, 2 * kh * dk :] *= np.repeat(2.0 ** rng.integers(-8, 8, (n, vh)), dv, axis=1)
        z = rng.normal(size=(n, vh * dv)).astype(np.float32)
        g, beta = 5 * rng.normal(size=(2, n, vh)).astype(np.float32)
        parent, masks = random_tree(n, rng)
        ops.take_started(pack)
        y, *state = between_projections(
            pack, layer, x, w, history, pending, g, beta, *gates, z, norm_w, eps, last, dtype, n_last,
            accepted=accepted, parent=parent, ancestors=masks)  # fmt: skip
        started = ops.take_started(pack)
        qkv, history, pending, g, beta = ops.delta_inputs(
            x, w, history, pending, g, beta, *gates, kh, dk, 1e-6, accepted, parent, pack=pack)  # fmt: skip
        o = layer.run(Inputs(shape, qkv, g, beta), accepted, parent=parent, ancestors=masks)
        assert np.array_equal(state[0], history) and np.array_equal(state[1][:n], pending[:n])
        twin = layer.copy()
        twin.S, twin.k, twin.cs, twin.delta = state[2:]
        for ours, theirs in zip(twin.everything(n), layer.everything(n), strict=True):
            close(ours, theirs)
        normed = norm_reference.gated_rms_norm(o, z.reshape(o.shape), norm_w, eps).reshape(n, -1).astype(np.float32)
        want, scale = linear_reference.linear(last, dtype, n_last, normed, "int8")
        size = np.abs(want).max(axis=1, keepdims=True)
        diff = distance(y / size, want / size)
        assert diff < tolerance("between_projections", "diff"), f"{n} rows: {diff:.2e}"
        # Values of x halfway between two codes may round either way; rarely as many as three per row.
        moved = 2 * linear_reference.moved_code(last, dtype, n_last, normed)
        assert ((np.abs(y - want) - moved) / scale).max() < tolerance("between_projections", "element")
        if "gated_delta_small_kernel" in started:
            has_norm = not any(kernel.startswith("gemm_skinny") for kernel in started)
            assert ("gated_rms_norm_kernel" in started) == has_norm
        accepted = path_to(parent, int(rng.integers(n)))
