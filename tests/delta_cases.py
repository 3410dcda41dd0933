"""Tests of recurrent layers, wherever the fixture `on` says: on the CPU (isa) or on a device (pack). Results are
compared with the fp64 recurrence along each path; a device's appends of up to 64 rows also with the CPU's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lucebox.selftest import ops, shapes
from numpy.typing import NDArray
from reference import delta_net as reference
from reference import rope as rope_reference
from tolerances import check
from tree_data import path_to, random_tree

F32, F64, I32 = NDArray[np.float32], NDArray[np.float64], NDArray[np.int32]
CAP = 64
NOTHING = np.zeros(0, np.int32)
Shape = tuple[int, int, int, int]  # key heads, value heads, dk, dv


def close(on: dict[str, Any], got: F32, want: F32 | F64) -> None:
    family = "delta_net_device" if "pack" in on else "delta_net"
    check(family, got, want, np.abs(want).max() + 1e-20 if want.size else 1.0)


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.normal(size=shape).astype(np.float32)


class Inputs:
    """Prepared rows in the engine's layout: q, k and v contiguous in each row."""

    def __init__(self, shape: Shape, qkv: F32, g: F32, beta: F32) -> None:
        self.shape, self.qkv, self.g, self.beta = shape, qkv, g, beta

    @classmethod
    def random(cls, shape: Shape, rows: int, rng: np.random.Generator, decay: float) -> Inputs:
        kh, vh, dk, dv = shape
        qkv = normal(rng, rows, 2 * kh * dk + vh * dv)
        for i, unit in ((0, dk**-0.5), (1, 1.0)):
            heads = qkv[:, i * kh * dk : (i + 1) * kh * dk].reshape(rows, kh, dk)
            heads = heads / np.linalg.norm(heads, axis=-1, keepdims=True) * np.float32(unit)
            qkv[:, i * kh * dk : (i + 1) * kh * dk] = heads.reshape(rows, kh * dk)
        scale = 10.0 ** rng.uniform(-3, 0.5, (rows, vh))  # decays of several orders of magnitude
        g = (-decay * scale * rng.exponential(size=(rows, vh))).astype(np.float32)
        return cls(shape, qkv, g, rng.uniform(size=(rows, vh)).astype(np.float32))

    def rows(self, rows: slice | I32) -> Inputs:
        return Inputs(self.shape, self.qkv[rows], self.g[rows], self.beta[rows])

    @property
    def parts(self) -> tuple[F32, F32, F32, F32, F32]:
        """q, k, v, g, beta in the reference's form."""
        kh, vh, dk, dv = self.shape
        q, k, v = np.split(self.qkv, (kh * dk, 2 * kh * dk), axis=1)
        n = len(self.qkv)
        return q.reshape(n, kh, dk), k.reshape(n, kh, dk), v.reshape(n, vh, dv), self.g, self.beta


class Layer:
    """The state of one layer; unused rows are NaN."""

    def __init__(self, on: dict[str, Any], shape: Shape, rng: np.random.Generator, order: str = "grouped") -> None:
        kh, vh, dk, dv = shape
        self.on, self.order, self.buffer = on, order, int(rng.integers(2))
        self.S = normal(rng, vh, dk, dv)
        self.k = np.full((2, CAP, kh, dk), np.nan, np.float32)
        self.cs = np.full((2, CAP, vh), np.nan, np.float32)
        self.delta = np.full((CAP, vh, dv), np.nan, np.float32)

    def copy(self, on: dict[str, Any] | None = None) -> Layer:
        twin = Layer.__new__(Layer)
        twin.__dict__ = self.__dict__ | ({} if on is None else {"on": on})
        return twin

    def run(self, inputs: Inputs, accepted: I32 | None = None, **tree: NDArray[np.generic]) -> F32:
        """Runs one append; does not modify the caller's arrays."""
        rows = len(inputs.qkv)
        twin = self.copy(on={})
        o, self.S, self.k, self.cs, self.delta = ops.gated_delta(
            inputs.qkv, inputs.g, inputs.beta, self.S, self.k, self.cs, self.delta, self.buffer, accepted, **tree,
            order=self.order, **self.on)  # fmt: skip
        self.buffer = (self.buffer + -(-rows // CAP)) % 2
        if "pack" in self.on and rows <= CAP:
            close(self.on, o, twin.run(inputs, accepted, **tree))
            for ours, theirs in zip(self.everything(rows), twin.everything(rows), strict=True):
                close(self.on, ours, theirs)
        return o

    def everything(self, rows: int) -> list[F32]:
        """All state that the next append may read."""
        return [self.S, self.delta[:rows], self.k[self.buffer][:rows], self.cs[self.buffer][:rows]]


ORDERS = pytest.mark.parametrize("order", ("grouped", "tiled"))


@ORDERS
@pytest.mark.parametrize("shape", shapes.RECURRENCES)
def test_steps(on: dict[str, Any], shape: Shape, order: str, seed: int) -> None:
    """Single-row steps; each folds the previous one."""
    rng = np.random.default_rng(seed)
    layer, inputs = Layer(on, shape, rng, order), Inputs.random(shape, 4, rng, 0.3)
    want, after = reference.recurrence(*inputs.parts, layer.S, order)
    for i in range(4):
        o = layer.run(inputs.rows(slice(i, i + 1)), np.zeros(1, np.int32) if i else NOTHING)
        close(on, o[0], want[i])
    layer.run(inputs.rows(slice(0, 0)), np.zeros(1, np.int32))
    close(on, layer.S, after)


@ORDERS
@pytest.mark.parametrize(("shape", "rows"), shapes.CHAINS)
def test_chain_then_step_and_fold(on: dict[str, Any], shape: Shape, order: str, rows: int, seed: int) -> None:
    """A chain, folded alone and at the start of the next append, with the same bits."""
    rng = np.random.default_rng(seed)
    layer = Layer(on, shape, rng, order)
    inputs, following, state = Inputs.random(shape, rows, rng, 0.1), Inputs.random(shape, 1, rng, 0.1), layer.S
    want, after = reference.recurrence(*inputs.parts, state, order)
    close(on, layer.run(inputs), want)
    alone, path = layer.copy(), np.arange(rows, dtype=np.int32)
    layer.copy().run(following)
    assert np.array_equal(layer.S, state), "nothing accepted leaves the state"
    alone.run(inputs.rows(slice(0, 0)), path)
    close(on, alone.S, after)
    close(on, layer.run(following, path), reference.recurrence(*following.parts, after, order)[0])
    assert np.array_equal(layer.S, alone.S), "a fold gives the same bits alone and before a step"


@pytest.mark.parametrize("shape", (*shapes.RECURRENCES[:2], (1, 1, 256, 40), shapes.RECURRENCES[4]))
def test_trees_with_accepted_paths_equal_the_sequence(on: dict[str, Any], shape: Shape, seed: int) -> None:
    rng = np.random.default_rng(seed)
    layer = Layer(on, shape, rng)
    state, taken, accepted = layer.S, [], NOTHING
    for n in (22, 1, 3, 64, 7, 31):
        inputs = Inputs.random(shape, n, rng, 0.2)
        parent, masks = random_tree(n, rng)
        got = layer.run(inputs, accepted, parent=parent, ancestors=masks)
        leaf = int(rng.integers(n))
        accepted = path_to(parent, leaf)
        taken.append(inputs.rows(accepted))
        sequence = [np.concatenate(parts) for parts in zip(*(part.parts for part in taken), strict=True)]
        want, after = reference.recurrence(*sequence, state)
        close(on, got[leaf], want[-1])
    layer.run(inputs.rows(slice(0, 0)), accepted)
    close(on, layer.S, after)


def check_hard_inputs(on: dict[str, Any], rng: np.random.Generator, shape: Shape, rows: int) -> None:
    """Decays that underflow, beta of 0 and 1, keys of zero."""
    layer, inputs = Layer(on, shape, rng), Inputs.random(shape, rows, rng, 1.0)
    inputs.g[:, 0], inputs.g[::2, 1] = -300.0, -90.0
    inputs.beta[:, 2], inputs.beta[::3, 3] = 0.0, 1.0
    inputs.qkv[::4, 2 * shape[2] : 4 * shape[2]] = 0
    want, after = reference.recurrence(*inputs.parts, layer.S)
    close(on, layer.run(inputs), want)
    layer.run(inputs.rows(slice(0, 0)), np.arange((rows - 1) % CAP + 1, dtype=np.int32))
    close(on, layer.S, after)


@pytest.mark.parametrize(("channels", "taps"), shapes.CONVOLUTIONS)
def test_conv_over_trees_with_accepted_paths(on: dict[str, Any], channels: int, taps: int, seed: int) -> None:
    """Every row equals the convolution of its path; some paths are shorter than the kernel."""
    rng = np.random.default_rng(seed)
    w, sequence = normal(rng, channels, taps), np.zeros((taps - 1, channels), np.float32)
    history, pending, accepted = sequence, np.full((CAP, channels), np.nan, np.float32), None
    found = []
    for n in (5, 1, 1, 64, 2, 9, 1):
        x, (parent, _) = normal(rng, n, channels), random_tree(n, rng)
        tail = sequence[len(sequence) - taps + 1 :]
        paths = [x[path_to(parent, i)] for i in range(n)]
        want = np.stack([reference.causal_conv(path, w, tail)[-1] for path in paths])
        terms = np.stack([reference.causal_conv(abs(path), abs(w), abs(tail))[-1] for path in paths])
        y, history, pending = ops.causal_conv(x, w, history, pending, accepted, parent, **on)
        found.append((y, want, terms))
        assert np.array_equal(history, tail) and np.array_equal(pending[:n], x)
        accepted = path_to(parent, int(rng.integers(n)))
        sequence = np.concatenate([sequence, x[accepted]])
    _, history, _ = ops.causal_conv(x[:0], w, history, pending, accepted, **on)
    assert np.array_equal(history, sequence[len(sequence) - taps + 1 :])
    # Checked together: the only value of a small append may be a sum that cancels.
    y, want, terms = (np.concatenate(parts) for parts in zip(*found, strict=True))
    check("delta_net_device" if "pack" in on else "delta_net", y, want, terms + 1e-20)


@pytest.mark.parametrize(("dk", "vh"), ((8, 3), (40, 16), (128, 33)))
def test_prepare(on: dict[str, Any], dk: int, vh: int, seed: int) -> None:
    rng, rows, kh = np.random.default_rng(seed), 5, 3
    fused = normal(rng, rows, 2 * kh * dk + 5)
    fused[3] *= np.float32(1e-4)  # here eps on the sum and eps on the mean are far apart
    fused[4] = 0
    q, k = (fused[:, i * kh * dk : (i + 1) * kh * dk].reshape(rows, kh, dk) for i in range(2))
    a, b = normal(rng, 2, rows, vh) * np.float32(8)
    a[0, :3], b[0, :2] = [-60.0, 25.0, 200.0], [-40.0, 40.0]
    a_neg, dt_bias = -rng.uniform(0.1, 8, vh).astype(np.float32), normal(rng, vh)
    want_q, want_k, want_g, want_beta = reference.prepare(q, k, a, b, a_neg, dt_bias, 1e-6)
    got, g, beta = ops.delta_prepare(fused, a, b, a_neg, dt_bias, kh, dk, 1e-6, **on)
    assert np.array_equal(got[:, 2 * kh * dk :], fused[:, 2 * kh * dk :])
    want = np.concatenate([want_q.reshape(rows, -1), want_k.reshape(rows, -1)], axis=1)
    check("norm", got[:, : 2 * kh * dk], want, np.abs(want) + 1e-30)
    # The sum in the exponent is rounded: so much of a small g as the sum is large.
    check("norm", g, want_g, np.abs(want_g) * (1 + np.abs(a + dt_bias)) + 1e-30)
    check("norm", beta, want_beta, want_beta)


def test_rope_table(on: dict[str, Any], seed: int) -> None:
    """Three unequal position rows, from negative ones to the largest."""
    rng = np.random.default_rng(seed)
    pos = rng.integers(0, 1 << 20, (3, 70)).astype(np.int32)
    pos[:, :9], pos[:, 9] = np.arange(9), [-5, (1 << 30) - 1, 262143]
    axis, inv_freq = rng.integers(0, 3, 37).astype(np.uint8), (1e7 ** (-np.arange(37) / 37)).astype(np.float32)
    for scale in (1.0, 1.375):
        table = (pos, axis, inv_freq, scale)
        got, on_cpu = ops.rope_table(*table, **on), ops.rope_table(*table)
        for ours, theirs, want in zip(got, on_cpu, rope_reference.rope_table(*table), strict=True):
            check("rope", ours, want, np.full_like(want, scale))
            check("rope", ours, theirs, np.full_like(want, scale))
