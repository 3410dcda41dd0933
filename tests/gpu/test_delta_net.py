"""Recurrent layers and the rope table on a device, against the fp64 recurrence along each path and the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gpu_packs
import numpy as np
import pytest
from lucebox import _engine
from lucebox.selftest import ops
from numpy.typing import NDArray
from reference import delta_net as reference
from reference import linear as linear_reference
from reference import rms_norm as norm_reference
from reference import rope as rope_reference
from reference.linear import random_weights
from tolerances import check, distance, tolerance
from tree_data import path_to, random_tree

F32, F64 = NDArray[np.float32], NDArray[np.float64]
CAP = 64
Pack = _engine.gpu.Pack
Shape = tuple[int, int, int, int]
SHAPES: tuple[Shape, ...] = ((2, 6, 32, 64), (1, 2, 40, 24), (2, 4, 8, 88))  # key heads, value heads, dk, dv
MODEL: Shape = (1, 2, 128, 128)
CHAIN: Shape = (
    2,
    4,
    128,
    32,
)  # small appends and long chains of this shape run on matrix units, if the target has them


def close(got: F32, want: F32 | F64) -> None:
    check("delta_net_device", got, want, np.abs(want).max() + 1e-20 if want.size else 1.0)


class Inputs:
    """Prepared rows in the engine's layout: q, k and v contiguous in each row."""

    def __init__(self, shape: Shape, rows: int, rng: np.random.Generator, decay: float) -> None:
        kh, vh, dk, dv = shape
        self.shape = shape
        self.qkv = rng.normal(size=(rows, 2 * kh * dk + vh * dv)).astype(np.float32)
        for i, unit in ((0, dk**-0.5), (1, 1.0)):
            heads = self.qkv[:, i * kh * dk : (i + 1) * kh * dk].reshape(rows, kh, dk)
            heads = heads / np.linalg.norm(heads, axis=-1, keepdims=True) * np.float32(unit)
            self.qkv[:, i * kh * dk : (i + 1) * kh * dk] = heads.reshape(rows, -1)
        scale = 10.0 ** rng.uniform(-3, 0.5, (rows, vh))  # decays of several orders of magnitude
        self.g = (-decay * scale * rng.exponential(size=(rows, vh))).astype(np.float32)
        self.beta = rng.uniform(size=(rows, vh)).astype(np.float32)

    def rows(self, rows: slice | NDArray[np.int32]) -> Inputs:
        part = Inputs.__new__(Inputs)
        part.shape, part.qkv, part.g, part.beta = self.shape, self.qkv[rows], self.g[rows], self.beta[rows]
        return part

    @property
    def parts(self) -> tuple[F32, F32, F32, F32, F32]:
        """q, k, v, g, beta in the reference's form."""
        kh, vh, dk, dv = self.shape
        q, k, v = np.split(self.qkv, (kh * dk, 2 * kh * dk), axis=1)
        n = len(self.qkv)
        return q.reshape(n, kh, dk), k.reshape(n, kh, dk), v.reshape(n, vh, dv), self.g, self.beta


class Layer:
    """The state of one layer on the device; unused rows are NaN."""

    def __init__(self, pack: Pack, shape: Shape, rng: np.random.Generator, order: str = "grouped") -> None:
        kh, vh, dk, dv = shape
        self.pack, self.order, self.buffer = pack, order, int(rng.integers(2))
        self.S = rng.normal(size=(vh, dk, dv)).astype(np.float32)
        self.k = np.full((2, CAP, kh, dk), np.nan, np.float32)
        self.cs = np.full((2, CAP, vh), np.nan, np.float32)
        self.delta = np.full((CAP, vh, dv), np.nan, np.float32)

    def copy(self) -> Layer:
        twin = Layer.__new__(Layer)
        twin.__dict__ = dict(self.__dict__)
        return twin

    def run(self, inputs: Inputs, accepted: NDArray[np.int32] | None = None, **tree: NDArray[np.generic]) -> F32:
        """Runs one append; does not modify the caller's arrays."""
        o = self._run(inputs, accepted, tree, pack=self.pack)
        self.buffer = (self.buffer + -(-len(inputs.qkv) // CAP)) % 2
        return o

    def run_on_cpu(self, inputs: Inputs, accepted: NDArray[np.int32] | None = None, **tree: NDArray[np.generic]) -> F32:
        o = self._run(inputs, accepted, tree)
        self.buffer = 1 - self.buffer
        return o

    def _run(self, inputs: Inputs, accepted: NDArray[np.int32] | None, tree: dict[str, Any], **on: Any) -> F32:
        o, self.S, self.k, self.cs, self.delta = ops.gated_delta(
            inputs.qkv, inputs.g, inputs.beta, self.S, self.k, self.cs, self.delta, self.buffer, accepted,
            **tree, order=self.order, **on)  # fmt: skip
        return o


def everything(layer: Layer, rows: int) -> list[F32]:
    """All state that the next append may read."""
    return [layer.S, layer.delta[:rows], layer.k[layer.buffer][:rows], layer.cs[layer.buffer][:rows]]


def check_beside_cpu(layer: Layer, inputs: Inputs, accepted: NDArray[np.int32] | None = None,
                     **tree: NDArray[np.generic]) -> F32:  # fmt: skip
    """Runs an append on the device and the CPU and compares; `layer` keeps the device's state."""
    twin = layer.copy()
    got, want = layer.run(inputs, accepted, **tree), twin.run_on_cpu(inputs, accepted, **tree)
    close(got, want)
    for ours, theirs in zip(everything(layer, len(got)), everything(twin, len(got)), strict=True):
        close(ours, theirs)
    return got


@pytest.mark.parametrize("order", ("grouped", "tiled"))
@pytest.mark.parametrize("shape", (*SHAPES, MODEL))
def test_steps(pack: Pack, shape: Shape, order: str, seed: int) -> None:
    """Single-row steps; each folds the previous one."""
    rng = np.random.default_rng(seed)
    layer = Layer(pack, shape, rng, order)
    inputs, state = Inputs(shape, 4, rng, 0.3), layer.S
    want, after = reference.recurrence(*inputs.parts, state, order)
    none, first = np.zeros(0, np.int32), np.zeros(1, np.int32)
    for i in range(4):
        close(check_beside_cpu(layer, inputs.rows(slice(i, i + 1)), first if i else none)[0], want[i])
    check_beside_cpu(layer, inputs.rows(slice(0, 0)), first)
    close(layer.S, after)


@pytest.mark.parametrize("order", ("grouped", "tiled"))
@pytest.mark.parametrize(("shape", "rows"), ((SHAPES[0], 33), (SHAPES[1], 2), (SHAPES[1], 17), (SHAPES[2], 32),
                                             (SHAPES[2], 64), (MODEL, 2), (MODEL, 16), (MODEL, 22), (CHAIN, 25),
                                             (CHAIN, 32), (MODEL, 63)))  # fmt: skip
def test_chain_then_step_and_fold(pack: Pack, shape: Shape, rows: int, order: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    layer = Layer(pack, shape, rng, order)
    inputs, following, state = Inputs(shape, rows, rng, 0.1), Inputs(shape, 1, rng, 0.1), layer.S
    want, after = reference.recurrence(*inputs.parts, state, order)
    close(check_beside_cpu(layer, inputs), want)
    assert np.array_equal(layer.S, state), "nothing accepted leaves the state"
    alone, path = layer.copy(), np.arange(rows, dtype=np.int32)
    check_beside_cpu(alone, inputs.rows(slice(0, 0)), path)
    close(alone.S, after)
    close(check_beside_cpu(layer, following, path), reference.recurrence(*following.parts, after, order)[0])
    assert np.array_equal(layer.S, alone.S), "a fold gives the same bits alone and before a step"


@pytest.mark.parametrize("shape", (*SHAPES[:2], (1, 1, 256, 40), CHAIN))
def test_trees_with_accepted_paths_equal_the_sequence(pack: Pack, shape: Shape, seed: int) -> None:
    rng = np.random.default_rng(seed)
    layer = Layer(pack, shape, rng)
    state, taken, accepted = layer.S, [], np.zeros(0, np.int32)
    for n in (22, 1, 3, 64, 7, 31):
        inputs = Inputs(shape, n, rng, 0.2)
        parent, masks = random_tree(n, rng)
        got = check_beside_cpu(layer, inputs, accepted, parent=parent, ancestors=masks)
        leaf = int(rng.integers(n))
        accepted = path_to(parent, leaf)
        taken.append(inputs.rows(accepted))
        sequence = [np.concatenate(parts) for parts in zip(*(part.parts for part in taken), strict=True)]
        want, after = reference.recurrence(*sequence, state)
        close(got[leaf], want[-1])
    layer.run(inputs.rows(slice(0, 0)), accepted)
    close(layer.S, after)


@pytest.mark.parametrize("rows", (65, 128, 200))
@pytest.mark.parametrize(("shape", "order"), ((SHAPES[0], "tiled"), (SHAPES[1], "tiled"), (CHAIN, "tiled"),
                                              (CHAIN, "grouped")))  # fmt: skip
def test_long_chain_equals_its_runs(pack: Pack, shape: Shape, order: str, rows: int, seed: int) -> None:
    """A long chain after a tree whose path it folds first leaves the same pending rows as chunk-by-chunk calls."""
    rng = np.random.default_rng(seed)
    layer = Layer(pack, shape, rng, order)
    before = Inputs(shape, 5, rng, 0.2)
    parent, masks = random_tree(5, rng)
    layer.run(before, parent=parent, ancestors=masks)
    path, inputs, twin = path_to(parent, 4), Inputs(shape, rows, rng, 0.05), layer.copy()
    by_runs, folded = [], path
    for first in range(0, rows, CAP):
        by_runs.append(twin.run(inputs.rows(slice(first, first + CAP)), folded))
        folded = np.arange(len(by_runs[-1]), dtype=np.int32)
    state = reference.recurrence(*before.rows(path).parts, layer.S, order)[1]
    got = layer.run(inputs, path)
    close(got, reference.recurrence(*inputs.parts, state, order)[0])
    close(got, np.concatenate(by_runs))
    assert layer.buffer == twin.buffer
    for ours, theirs in zip(everything(layer, len(folded)), everything(twin, len(folded)), strict=True):
        close(ours, theirs)


@pytest.mark.parametrize(("rows", "shape"), ((1, (2, 4, 32, 32)), (31, (2, 4, 32, 32)), (22, CHAIN),
                                             (130, (2, 4, 32, 32)), (130, CHAIN)))  # fmt: skip
def test_hard_inputs(pack: Pack, rows: int, shape: Shape, seed: int) -> None:
    """Decays that underflow, beta of 0 and 1, keys of zero."""
    rng = np.random.default_rng(seed)
    layer = Layer(pack, shape, rng)
    inputs = Inputs(shape, rows, rng, 1.0)
    inputs.g[:, 0], inputs.g[::2, 1] = -300.0, -90.0
    inputs.beta[:, 2], inputs.beta[::3, 3] = 0.0, 1.0
    inputs.qkv[::4, 2 * shape[2] : 4 * shape[2]] = 0
    want, after = reference.recurrence(*inputs.parts, layer.S)
    close(layer.run(inputs), want)
    layer.run(inputs.rows(slice(0, 0)), np.arange((rows - 1) % CAP + 1, dtype=np.int32))
    close(layer.S, after)


@pytest.mark.parametrize("taps", (2, 4, 8))
@pytest.mark.parametrize("channels", (1, 70))
def test_conv_over_trees_with_accepted_paths(pack: Pack, taps: int, channels: int, seed: int) -> None:
    """Compares every row with the convolution of its path; some paths are shorter than the kernel."""
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(channels, taps)).astype(np.float32)
    history, pending = np.zeros((taps - 1, channels), np.float32), np.full((CAP, channels), np.nan, np.float32)
    sequence, accepted = history, None
    for n in (5, 1, 1, 64, 2, 9, 1):
        x = rng.normal(size=(n, channels)).astype(np.float32)
        parent, _ = random_tree(n, rng)
        tail = sequence[len(sequence) - taps + 1 :]
        want = np.stack([reference.causal_conv(x[path_to(parent, i)], w, tail)[-1] for i in range(n)])
        y, history, pending = ops.causal_conv(x, w, history, pending, accepted, parent, pack=pack)
        close(y, want)
        assert np.array_equal(history, tail) and np.array_equal(pending[:n], x)
        accepted = path_to(parent, int(rng.integers(n)))
        sequence = np.concatenate([sequence, x[accepted]])
    y, history, _ = ops.causal_conv(x[:0], w, history, pending, accepted, pack=pack)
    assert np.array_equal(history, sequence[len(sequence) - taps + 1 :])


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


@pytest.mark.parametrize(("dk", "vh"), ((8, 3), (40, 16), (128, 33)))
def test_prepare(pack: Pack, dk: int, vh: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, kh = 5, 3
    fused = rng.normal(size=(rows, 2 * kh * dk + 5)).astype(np.float32)
    fused[3] *= np.float32(1e-4)  # here eps on the sum and eps on the mean are far apart
    fused[4] = 0
    q, k = (fused[:, i * kh * dk : (i + 1) * kh * dk].reshape(rows, kh, dk) for i in range(2))
    a, b = rng.normal(size=(2, rows, vh)).astype(np.float32) * np.float32(8)
    a[0, :3] = [-60.0, 25.0, 200.0]
    b[0, :2] = [-40.0, 40.0]
    a_neg, dt_bias = -rng.uniform(0.1, 8, vh).astype(np.float32), rng.normal(size=vh).astype(np.float32)
    want_q, want_k, want_g, want_beta = reference.prepare(q, k, a, b, a_neg, dt_bias, 1e-6)
    got, g, beta = ops.delta_prepare(fused, a, b, a_neg, dt_bias, kh, dk, 1e-6, pack=pack)
    assert np.array_equal(got[:, 2 * kh * dk :], fused[:, 2 * kh * dk :])
    want = np.concatenate([want_q.reshape(rows, -1), want_k.reshape(rows, -1)], axis=1)
    check("norm", got[:, : 2 * kh * dk], want, np.abs(want) + 1e-30)
    # The sum in the exponent is rounded: so much of a small g as the sum is large.
    check("norm", g, want_g, np.abs(want_g) * (1 + np.abs(a + dt_bias)))
    check("norm", beta, want_beta, want_beta)


def test_rope_table(pack: Pack, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pos = rng.integers(0, 1 << 20, (3, 70)).astype(np.int32)
    pos[:, :9], pos[:, 9] = np.arange(9), [-5, (1 << 30) - 1, 262143]
    axis = rng.integers(0, 3, 37).astype(np.uint8)
    inv_freq = (1e7 ** (-np.arange(37) / 37)).astype(np.float32)
    for scale in (1.0, 1.375):
        table = (pos, axis, inv_freq, scale)
        got, on_cpu = ops.rope_table(*table, pack=pack), ops.rope_table(*table)
        for ours, theirs, want in zip(got, on_cpu, rope_reference.rope_table(*table), strict=True):
            check("rope", ours, want, np.full_like(want, scale))
            check("rope", ours, theirs, np.full_like(want, scale))


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


@pytest.mark.parametrize(("rows", "dtype", "order"), (
    (2, "Q6_K", "grouped"), (7, "Q4_K", "tiled"), (16, "Q4_K", "grouped"), (22, "Q5_K", "tiled"),
    (32, "Q4_K", "grouped"), (1, "Q4_K", "tiled"), (1, "Q4_K", "grouped"), (33, "Q4_K", "tiled"),
    (33, "Q4_K", "grouped"), (9, "Q8_0", "tiled")))  # fmt: skip
def test_between_projections(pack: Pack, pack_folder: Path, rows: int, dtype: str, order: str, seed: int) -> None:
    """A tree after a tree, as the engine sends it. Small appends fuse the norm into the next launch; product and state
    equal those of the separate ops."""
    if dtype == "Q5_K" and not gpu_packs.has_kernel(gpu_packs.manifest_of(pack_folder), "gemm_skinny_q5_k_"):
        pytest.skip("the pack multiplies 5 rows of Q5_K one by one")
    rng = np.random.default_rng(seed)
    shape: Shape = (2, 6, 128, 128)
    kh, vh, dk, dv = shape
    channels, n_last, eps = 2 * kh * dk + vh * dv, 75, 1e-5
    layer = Layer(pack, shape, rng, order)
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
        inputs = Inputs.__new__(Inputs)
        inputs.shape, inputs.qkv, inputs.g, inputs.beta = shape, qkv, g, beta
        o = layer.run(inputs, accepted, parent=parent, ancestors=masks)
        assert np.array_equal(state[0], history) and np.array_equal(state[1][:n], pending[:n])
        twin = layer.copy()
        twin.S, twin.k, twin.cs, twin.delta = state[2:]
        for ours, theirs in zip(everything(twin, n), everything(layer, n), strict=True):
            close(ours, theirs)
        normed = norm_reference.gated_rms_norm(o, z.reshape(o.shape), norm_w, eps).reshape(n, -1).astype(np.float32)
        want, scale = linear_reference.linear(last, dtype, n_last, normed, "int8")
        size = np.abs(want).max(axis=1, keepdims=True)
        diff = distance(y / size, want / size)
        assert diff < tolerance("between_projections", "diff"), f"{n} rows: {diff:.2e}"
        # Values of x halfway between two codes may round either way; rarely as many as three per row.
        moved = 2 * linear_reference.moved_code(last, dtype, n_last, normed)
        assert ((np.abs(y - want) - moved) / scale).max() < tolerance("between_projections", "element")
        if "gated_delta_few_kernel" in started:
            has_norm = not any(kernel.startswith("gemm_skinny") for kernel in started)
            assert ("gated_rms_norm_kernel" in started) == has_norm
        accepted = path_to(parent, int(rng.integers(n)))
