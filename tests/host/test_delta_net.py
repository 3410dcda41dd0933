"""Gated DeltaNet: chunks, trees and folds of accepted paths against the plain fp64 recurrence along each path."""

from __future__ import annotations

import numpy as np
import pytest
from lucebox.selftest import ops
from numpy.typing import NDArray
from reference import delta_net as reference
from tolerances import check
from tree_data import path_to, random_tree

F32 = NDArray[np.float32]
CAP = 64


def close(got: F32, want: NDArray[np.float64]) -> None:
    check("delta_net", got, want, np.abs(want).max() + 1e-20 if want.size else 1.0)


class Layer:
    """The state of one layer, unused rows poisoned, and a stream of prepared inputs."""

    def __init__(self, kh: int, vh: int, dk: int, dv: int, seed: int, order: str = "grouped") -> None:
        self.shape, self.order = (kh, vh, dk, dv), order
        self.rng = np.random.default_rng(seed)
        self.S = np.zeros((vh, dk, dv), np.float32)
        self.k = np.full((2, CAP, kh, dk), np.nan, np.float32)
        self.delta = np.full((CAP, vh, dv), np.nan, np.float32)
        self.cs = np.full((2, CAP, vh), np.nan, np.float32)
        self.buffer = 0

    def inputs(self, rows: int, decay: float = 1.0) -> tuple[F32, ...]:
        kh, vh, dk, dv = self.shape
        fused = self.rng.normal(size=(rows, 2 * kh * dk + vh * dv)).astype(np.float32)
        q, k = (np.lib.stride_tricks.as_strided(fused[:, i * kh * dk :], (rows, kh, dk), (fused.strides[0], 4 * dk, 4))
                for i in range(2))  # fmt: skip
        q[...] /= np.linalg.norm(q, axis=-1, keepdims=True) * np.float32(dk**0.5)
        k[...] /= np.linalg.norm(k, axis=-1, keepdims=True)
        v = np.lib.stride_tricks.as_strided(fused[:, 2 * kh * dk :], (rows, vh, dv), (fused.strides[0], 4 * dv, 4))
        g = -decay * self.rng.exponential(size=(rows, vh)).astype(np.float32)
        beta = self.rng.uniform(size=(rows, vh)).astype(np.float32)
        return q, k, v, g.astype(np.float32), beta

    def run(self, inputs: tuple[F32, ...], isa: str, threads: int = 1, **shape: NDArray[np.generic]) -> F32:
        qkv = np.concatenate([part.reshape(len(part), part.shape[1] * part.shape[2]) for part in inputs[:3]], axis=1)
        o, self.S, self.k, self.cs, self.delta = ops.gated_delta(
            qkv, *inputs[3:], self.S, self.k, self.cs, self.delta, self.buffer, order=self.order, isa=isa,
            threads=threads, **shape)  # fmt: skip
        self.buffer = 1 - self.buffer
        return o


def rows_of(inputs: tuple[F32, ...], rows: NDArray[np.int32] | slice) -> tuple[F32, ...]:
    return tuple(x[rows] for x in inputs)


SHAPES = ((2, 2, 128, 128), (2, 6, 32, 64), (1, 2, 40, 24), (2, 4, 8, 88))


@pytest.mark.parametrize("order", ("grouped", "tiled"))
@pytest.mark.parametrize("shape", SHAPES)
def test_chain_then_fold(isa: str, shape: tuple[int, int, int, int], order: str) -> None:
    """A chain from an old state, folded alone and at the start of the next append."""
    for rows in (1, 2, 5, 6, 7, 63, 64):
        layer = Layer(*shape, seed=rows, order=order)
        layer.S[:] = layer.rng.normal(size=layer.S.shape)
        inputs, following = layer.inputs(rows, 0.1), layer.inputs(3, 0.1)
        want, state = reference.recurrence(*inputs, layer.S, order)
        close(layer.run(inputs, isa=isa), want)
        got = layer.run(following, isa, accepted=np.arange(rows, dtype=np.int32))
        close(got, reference.recurrence(*following, state, order)[0])
        close(layer.S, state)


@pytest.mark.parametrize("rows", (1, 2, 16, 22, 64))
@pytest.mark.parametrize("decay", (0.05, 5.0))
def test_tree_rows_equal_their_paths(isa: str, rows: int, decay: float) -> None:
    layer = Layer(2, 4, 64, 32, seed=rows)
    layer.S[:] = layer.rng.normal(size=layer.S.shape)
    parent, masks = random_tree(rows, layer.rng)
    inputs, before = layer.inputs(rows, decay), layer.S.copy()
    got = layer.run(inputs, isa, parent=parent, ancestors=masks)
    assert np.array_equal(layer.S, before), "verification must not touch the state"
    want = np.stack([reference.recurrence(*rows_of(inputs, path_to(parent, i)), before)[0][-1] for i in range(rows)])
    close(got, want)


@pytest.mark.parametrize("rows", (2, 9, 64))
def test_a_row_has_the_same_bits_alone(isa: str, rows: int) -> None:
    layer = Layer(2, 4, 40, 88, seed=rows)
    layer.S[:] = layer.rng.normal(size=layer.S.shape)
    parent, masks = random_tree(rows, layer.rng)
    inputs, before = layer.inputs(rows, 0.2), layer.S.copy()
    tree = layer.run(inputs, isa, parent=parent, ancestors=masks)
    for leaf in (rows - 1, rows // 2):
        alone = Layer(2, 4, 40, 88, seed=0)
        alone.S[:] = before
        accepted = np.zeros(0, np.int32)
        for row in path_to(parent, leaf):
            o = alone.run(rows_of(inputs, slice(row, row + 1)), isa, accepted=accepted)
            accepted = np.zeros(1, np.int32)
        assert np.array_equal(o[0], tree[leaf])


def test_trees_with_accepted_paths_equal_the_sequence(isa: str) -> None:
    """Twelve appends (trees, chains, single rows), a random path of each accepted, against one long recurrence."""
    layer = Layer(2, 4, 32, 40, seed=9)
    taken: list[tuple[F32, ...]] = []
    accepted = np.zeros(0, np.int32)
    for n in (64, 1, 22, 1, 1, 7, 64, 3, 1, 40, 2, 1):
        inputs = layer.inputs(n, 0.2)
        parent, masks = random_tree(n, layer.rng)
        layer.run(inputs, isa, accepted=accepted, parent=parent, ancestors=masks)
        accepted = path_to(parent, int(layer.rng.integers(n)))
        taken.append(rows_of(inputs, accepted))
    sequence = tuple(np.concatenate(parts) for parts in zip(*taken, strict=True))
    layer.run(layer.inputs(0), isa, accepted=accepted)
    close(layer.S, reference.recurrence(*sequence, np.zeros(layer.S.shape))[1])


@pytest.mark.parametrize("rows", (1, 9))
def test_fold_gives_the_same_bits_alone_and_fused(isa: str, rows: int) -> None:
    states = []
    for alone in (True, False):
        layer = Layer(2, 2, 40, 72, seed=1)
        layer.S[:] = layer.rng.normal(size=layer.S.shape)
        layer.run(layer.inputs(5, 0.3), isa=isa)
        following, path = layer.inputs(rows), np.array([0, 2, 3], np.int32)
        if alone:
            layer.run(rows_of(following, slice(0, 0)), isa, accepted=path)
        else:
            layer.run(following, isa, accepted=path)
        states.append(layer.S)
    assert np.array_equal(*states)


def test_nothing_accepted_leaves_the_state(isa: str) -> None:
    layer = Layer(1, 1, 16, 16, seed=2)
    layer.S[:] = layer.rng.normal(size=layer.S.shape)
    before = layer.S.copy()
    layer.run(layer.inputs(4), isa=isa)
    layer.run(layer.inputs(1), isa=isa)
    assert np.array_equal(layer.S, before)


@pytest.mark.parametrize("rows", (1, 31, 64))
def test_hard_inputs(isa: str, rows: int) -> None:
    """Decays that underflow, beta of 0 and 1, keys of zero."""
    layer = Layer(2, 4, 32, 32, seed=4)
    layer.S[:] = layer.rng.normal(size=layer.S.shape)
    q, k, v, g, beta = layer.inputs(rows)
    g[:, 0], g[::2, 1] = -300.0, -90.0
    beta[:, 2], beta[::3, 3] = 0.0, 1.0
    k[::4] = 0
    want, state = reference.recurrence(q, k, v, g, beta, layer.S)
    close(layer.run((q, k, v, g, beta), isa=isa), want)
    layer.run(layer.inputs(0), isa, accepted=np.arange(rows, dtype=np.int32))
    close(layer.S, state)


@pytest.mark.parametrize("rows", (1, 20, 64))
def test_threads_change_no_bit(isa: str, rows: int) -> None:
    results = []
    for threads in (1, 2):
        layer = Layer(1, 2, 128, 128, seed=6)
        layer.run(layer.inputs(64), isa, threads)
        o = layer.run(layer.inputs(rows), isa, threads, accepted=np.arange(64, dtype=np.int32))
        results.append((o, layer.S, layer.delta[:rows], layer.cs[layer.buffer][:rows]))
    for one, two in zip(*results, strict=True):
        assert np.array_equal(one, two)


@pytest.mark.parametrize("taps", (2, 3, 4, 8))
@pytest.mark.parametrize("channels", (1, 17, 600))
def test_conv_over_trees_with_accepted_paths(isa: str, taps: int, channels: int) -> None:
    """Compares every row with the convolution of its path; some paths are shorter than the kernel."""
    rng = np.random.default_rng(channels)
    w = rng.normal(size=(channels, taps)).astype(np.float32)
    history = np.zeros((taps - 1, channels), np.float32)
    pending = np.full((CAP, channels), np.nan, np.float32)
    sequence = history.copy()
    accepted = np.zeros(0, np.int32)
    for n in (5, 1, 1, 64, 2, 9, 1):
        x = rng.normal(size=(n, channels)).astype(np.float32)
        parent, _ = random_tree(n, rng)
        tail = sequence[len(sequence) - taps + 1 :]
        want = np.stack([reference.causal_conv(x[path_to(parent, i)], w, tail)[-1] for i in range(n)])
        y, history, pending = ops.causal_conv(x, w, history, pending, accepted, parent, isa=isa, threads=2)
        close(y, want)
        assert np.array_equal(history, tail)
        accepted = path_to(parent, int(rng.integers(n)))
        sequence = np.concatenate([sequence, x[accepted]])


def test_conv_chain(isa: str) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(64, 33)).astype(np.float32), rng.normal(size=(33, 4)).astype(np.float32)
    history = rng.normal(size=(3, 33)).astype(np.float32)
    want = reference.causal_conv(x, w, history)
    close(ops.causal_conv(x, w, history, np.full((CAP, 33), np.nan, np.float32), isa=isa)[0], want)


@pytest.mark.parametrize(("dk", "vh"), ((8, 3), (40, 16), (128, 17)))
def test_prepare(isa: str, dk: int, vh: int) -> None:
    rng = np.random.default_rng(dk)
    rows, kh = 11, 3
    fused = rng.normal(size=(rows, 2 * kh * dk + 5)).astype(np.float32)
    fused[3] *= np.float32(1e-4)  # here eps on the sum and eps on the mean are far apart
    fused[4] = 0
    q, k = (fused[:, i * kh * dk : (i + 1) * kh * dk].reshape(rows, kh, dk) for i in range(2))
    a, b = rng.normal(size=(2, rows, vh)).astype(np.float32) * np.float32(8)
    a[0, :3] = [-80.0, 25.0, 200.0]
    b[0, :2] = [-40.0, 40.0]
    a_neg, dt_bias = -rng.uniform(0.1, 8, vh).astype(np.float32), rng.normal(size=vh).astype(np.float32)
    want = reference.prepare(q, k, a, b, a_neg, dt_bias, 1e-6)
    qk, g, beta = ops.delta_prepare(fused, a, b, a_neg, dt_bias, kh, dk, 1e-6, isa=isa, threads=2)
    q, k, padding = np.split(qk, (kh * dk, 2 * kh * dk), axis=1)
    for got, expected in zip((q.reshape(rows, kh, dk), k.reshape(rows, kh, dk), g, beta), want, strict=True):
        check("norm", got, expected, np.abs(expected) + 1e-30)
    assert np.array_equal(padding, fused[:, 2 * kh * dk :])
