"""Cases of recurrent layers: input ops and the gated delta rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from lucebox.selftest import ops
from lucebox.selftest.case import Array, Case, Parts, in_parts, unit_one
from lucebox.selftest.inputs import ancestors_of, normal, path

CHUNK = 64  # rows of a recurrent layer that the CPU computes together
# (key heads, value heads, dk, dv), rows: a decode step, trees, long linear appends; more state slices than any chip has
# multiprocessors.
RECURRENCES = (((2, 6, 128, 128), (0, 1, 22, 130)), ((1, 1, 24, 16), (1, 7, 65)), ((2, 48, 8, 96), (3, 65)))


def inputs(rng: np.random.Generator) -> Iterator[Case]:
    """The ops that precede the recurrence: position tables, the convolution, the gates."""
    for rows, n_pairs, scale in ((1, 32, 1.0), (70, 33, 1.375)):
        pos = rng.integers(0, 1 << 18, (3, rows)).astype(np.int32)
        table = (pos, rng.integers(0, 3, n_pairs).astype(np.uint8), normal(rng, n_pairs), scale)
        yield Case("rope_table", "rope", partial(_stacked, ops.rope_table, *table), table, {}, np.stack, unit_one)
    for channels, taps in ((1037, 4), (33, 8)):
        for rows in (0, 1, 22, 130):
            state = (normal(rng, taps - 1, channels), normal(rng, CHUNK, channels))
            conv = (normal(rng, rows, channels), normal(rng, channels, taps), *state, path(rng, 5))
            yield in_parts("causal_conv", "row", partial(_convolved, *conv), partial(_kept, rows, None), *conv)
    for heads, dk in ((3, 40), (16, 128)):
        qk, g, beta = normal(rng, 5, 2 * heads * dk + 3), 9 * normal(rng, 5, 33), 9 * normal(rng, 5, 33)
        prepare = (qk, g, beta, -np.abs(normal(rng, 33)), normal(rng, 33), heads, dk, 1e-6)
        yield in_parts("delta_prepare", "row", partial(ops.delta_prepare, *prepare), list, *prepare)
    for rows, kh, vh, dk, taps in ((1, 3, 33, 40, 8), (1, 16, 16, 128, 4), (22, 2, 16, 128, 4), (130, 2, 16, 128, 4)):
        channels = 2 * kh * dk + 24 * vh
        state = (normal(rng, taps - 1, channels), normal(rng, CHUNK, channels))
        gates = (9 * normal(rng, rows, vh), 9 * normal(rng, rows, vh), -np.abs(normal(rng, vh)), normal(rng, vh))
        x = normal(rng, rows, channels)
        inputs = (x, normal(rng, channels, taps), *state, *gates, kh, dk, 1e-6, path(rng, 5))
        expected, kept = partial(_delta_inputs, *inputs), partial(_kept_inputs, rows)
        yield in_parts("delta_inputs", "row", expected, kept, *inputs)
        if rows == 1:
            yield in_parts("delta_inputs", "row", expected, kept, *inputs, sequences=3)


def recurrences(rng: np.random.Generator) -> Iterator[Case]:
    """The delta rule after five pending rows, some of them accepted."""
    for (kh, vh, dk, dv), row_counts in RECURRENCES:
        for rows in row_counts:
            qkv = normal(rng, rows, 2 * kh * dk + vh * dv) / np.sqrt(np.float32(dk))
            gates = (-np.abs(normal(rng, rows, vh)) / 9, rng.uniform(size=(rows, vh)).astype(np.float32))
            keys, decays = normal(rng, 2, CHUNK, kh, dk), -np.cumsum(np.abs(normal(rng, 2, CHUNK, vh)), axis=1)
            state = (normal(rng, vh, dk, dv), keys / np.sqrt(np.float32(dk)), decays, normal(rng, CHUNK, vh, dv))
            parent = np.array([rng.integers(-1, i) for i in range(rows)], np.int32) if rows <= CHUNK else None
            shape = (parent, None if parent is None else ancestors_of(parent), "tiled" if rows % 2 else "grouped")
            delta = (qkv, *gates, *state, 1, path(rng, 5), *shape)
            expected, kept = partial(_recurred, *delta), partial(_kept, rows, 1)
            yield in_parts("gated_delta", "recurrence", expected, kept, *delta)
            if rows == 1:
                yield in_parts("gated_delta", "recurrence", expected, kept, *delta, sequences=3)


def _kept(rows: int, buffer: int | None, parts: Parts) -> Parts:
    """The defined outputs of a recurrent op. Of the pending rows, only the last chunk's are defined, in their
    buffer."""
    last = (rows - 1) % CHUNK + 1 if rows else 0
    if buffer is None:
        y, history, pending = parts
        return [y, history, pending[:last]]
    o, state, keys, decays, delta = parts
    filled = (buffer + -(-rows // CHUNK)) % 2
    return [o, state, keys[filled][:last], decays[filled][:last], delta[:last]]


def _kept_inputs(rows: int, parts: Parts) -> Parts:
    return [*_kept(rows, None, parts[:3]), *parts[3:]]


def _stacked(op: Callable[..., Any], *arguments: Any) -> Array:
    return np.stack(op(*arguments))


def _chunks(rows: int, accepted: Array) -> Iterator[tuple[slice, Array]]:
    """The chunks of an append, each with the accepted rows of the previous chunk."""
    yield slice(0, min(rows, CHUNK)), accepted
    for first in range(CHUNK, rows, CHUNK):
        yield slice(first, min(rows, first + CHUNK)), np.arange(CHUNK, dtype=np.int32)


def _convolved(x: Array, w: Array, history: Array, pending: Array, accepted: Array) -> Parts:
    y = []
    for chunk, taken in _chunks(len(x), accepted):
        part, history, pending = ops.causal_conv(x[chunk], w, history, pending, taken)
        y.append(part)
    return [np.concatenate(y), history, pending]


def _delta_inputs(x: Array, w: Array, history: Array, pending: Array, *gates: Any) -> Parts:
    *rest, accepted = gates
    y, history, pending = _convolved(x, w, history, pending, accepted)
    y, g, beta = ops.delta_prepare(y, *rest)
    return [y, history, pending, g, beta]


def _recurred(
    qkv: Array, g: Array, beta: Array, state: Array, keys: Array, decays: Array, delta: Array, buffer: int,
    accepted: Array, *tree: Any,
) -> Parts:  # fmt: skip
    o = []
    for chunk, taken in _chunks(len(qkv), accepted):
        part, state, keys, decays, delta = ops.gated_delta(
            qkv[chunk], g[chunk], beta[chunk], state, keys, decays, delta, buffer, taken, *tree
        )
        o.append(part)
        buffer = 1 - buffer
    return [np.concatenate(o), state, keys, decays, delta]
