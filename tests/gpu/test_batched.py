"""Kernels for several sequences give each sequence the same bits as the kernel for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from lucebox import _engine
from lucebox.selftest import ops
from lucebox.selftest.inputs import normal, path

PAGES = 5


class Captured(Exception):
    def __init__(self, op: str, fields: dict[str, Any]) -> None:
        super().__init__(op)
        self.op, self.fields = op, {name: value for name, value in fields.items() if value is not None}


@pytest.fixture
def call_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, dict[str, Any]]]:
    """The name and fields of the op that a function of lucebox.selftest.ops runs on a device."""

    def run(op: str, on: dict[str, Any], **fields: Any) -> None:
        raise Captured(op, fields)

    def call(function: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[str, dict[str, Any]]:
        with monkeypatch.context() as patched, pytest.raises(Captured) as captured:
            patched.setattr(ops, "run", run)
            function(*arguments, pack=None, **options)
        return captured.value.op, captured.value.fields

    return call


def check(pack: _engine.gpu.Pack, calls: list[tuple[str, dict[str, Any]]], kernel: str) -> None:
    op = calls[0][0]
    alone = [ops.run(op, {"pack": pack}, **fields) for _, fields in calls]
    ops.take_started(pack)
    together = ops.run_each(op, {"pack": pack}, [fields for _, fields in calls])
    assert ops.take_started(pack)[0].startswith(kernel)
    for want, got in zip(alone, together, strict=True):
        assert want.keys() == got.keys()
        for name, value in want.items():
            assert np.array_equal(value, got[name], equal_nan=True), name


@pytest.mark.parametrize("n", [2, 16])
@pytest.mark.parametrize(
    "types, heads, kernel",
    [
        (("f16", "f16"), (6, 2, 64), "attention_decode_f16_64_kernel_batched"),
        (("bf16", "bf16"), (12, 1, 128), "attention_decode_bf16_128_kernel_batched"),
        (("wht4", "q8_0"), (4, 1, 128), "attention_decode_"),
        (("q4_0", "tq3_0"), (18, 2, 256), "attention_decode_packed_256_kernel"),  # NVIDIA: a launch each
    ],
)
def test_attention(
    pack: _engine.gpu.Pack, call_of: Callable[..., Any], types: tuple[str, str], heads: tuple[int, int, int],
    kernel: str, n: int, seed: int,
) -> None:  # fmt: skip
    """Lengths from one token to several splits; each sequence has separate pages, gate and table."""
    n_heads, n_kv, dim = heads
    rng = np.random.default_rng(seed)
    calls = []
    for _ in range(n):
        n_past = int(rng.integers(0, PAGES * 64 - 1))
        table = rng.permutation(PAGES).astype(np.int32)
        k, v = normal(rng, 2, n_past + 1, n_kv, dim)
        empty = [_pages(kv, n_kv, dim) for kv in types]
        pages = ops.kv_append(k, v, *empty, *types, table, 0)
        arguments = (normal(rng, 1, n_heads, dim), *pages, *types, table, n_past, 1 / dim**0.5)
        calls.append(call_of(ops.attention, *arguments, normal(rng, 1, n_heads, dim)))
    check(pack, calls, kernel)


def _pages(kv: str, n_kv: int, dim: int) -> np.ndarray:
    if kv in ("f16", "bf16"):
        return np.zeros((PAGES, n_kv, 64, dim), np.uint16)
    return np.zeros((PAGES, n_kv, 64, _engine.kv_slot_bytes(kv, dim)), np.uint8)


@pytest.mark.parametrize("n", [2, 13])
def test_attention_inputs(pack: _engine.gpu.Pack, call_of: Callable[..., Any], n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    calls = []
    for _ in range(n):
        turns = normal(rng, 2, 1, 16)
        cache = [_pages("f16", 2, 64) for _ in range(2)]
        where = ("f16", "f16", rng.permutation(PAGES).astype(np.int32), int(rng.integers(0, 300)), 1e-6)
        x = (normal(rng, 1, 6, 64), *normal(rng, 2, 1, 2, 64), normal(rng, 64), normal(rng, 64))
        calls.append(call_of(ops.attention_prepare, *x, *turns, *cache, *where))
    check(pack, calls, "attention_prepare_kernel_batched")


@pytest.mark.parametrize("n", [2, 16])
@pytest.mark.parametrize("dim", [1, 97, 520])
def test_copies(pack: _engine.gpu.Pack, call_of: Callable[..., Any], n: int, dim: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    calls = [call_of(ops.copy_rows, normal(rng, 1, dim), normal(rng, 3, dim + 2), 2, i % 3) for i in range(n)]
    check(pack, calls, "copy_rows_kernel_batched")


@pytest.mark.parametrize("n, dk, dv", [(2, 128, 128), (3, 8, 72), (13, 40, 24)])  # warps for all slices, or one warp
def test_delta_net(pack: _engine.gpu.Pack, call_of: Callable[..., Any], n: int, dk: int, dv: int, seed: int) -> None:
    """Inputs and recurrence, after different numbers of accepted rows in either buffer."""
    rng = np.random.default_rng(seed)
    kh, vh, taps = 2, 4, 4
    channels = 2 * kh * dk + vh * dv
    weights, gates = normal(rng, channels, taps), (-np.abs(normal(rng, vh)), normal(rng, vh))
    inputs, deltas = [], []
    for _ in range(n):
        accepted = path(rng, int(rng.integers(1, 9)))
        state = (normal(rng, taps - 1, channels), normal(rng, 64, channels))
        own = (normal(rng, 1, channels), weights, *state, normal(rng, 1, vh), normal(rng, 1, vh), *gates)
        inputs.append(call_of(ops.delta_inputs, *own, kh, dk, 1e-6, accepted))
        keys, decays = normal(rng, 2, 64, kh, dk), -np.cumsum(np.abs(normal(rng, 2, 64, vh)), axis=1)
        given = (normal(rng, 1, channels), -np.abs(normal(rng, 1, vh)), rng.uniform(size=(1, vh)).astype(np.float32))
        memory = (normal(rng, vh, dk, dv), keys, decays, normal(rng, 64, vh, dv), int(rng.integers(2)), accepted)
        deltas.append(call_of(ops.gated_delta, *given, *memory))
    check(pack, inputs, "delta_inputs_kernel_batched")
    check(pack, deltas, "gated_delta_step_kernel_batched")


@pytest.mark.parametrize("n", [2, 16])
@pytest.mark.parametrize("steps, vocab", [(5, 13), (2, 32_003)])
def test_samples(pack: _engine.gpu.Pack, n: int, steps: int, vocab: int, seed: int) -> None:
    """Each sequence samples from its logits, and updates its counts and history."""
    rng = np.random.default_rng(seed)
    logits, prompt = 3 * normal(rng, n, steps, vocab), rng.integers(0, vocab, 5, np.int32)
    options = {"temperature": 0.8, "top_k": 9, "top_p": 0.9, "frequency_penalty": 0.2, "seed": seed}
    together = ops.sample_batched(logits, prompt, pack=pack, **options)
    assert {"sample_kernel_batched", "next_token_kernel_batched"} <= set(ops.take_started(pack))
    for own, got in zip(logits, together, strict=True):
        want = ops.sample(own, prompt, pack=pack, ring_capacity=8, **options)
        for name in ("tokens", "problems", "numbers", "counts", "history"):
            assert np.array_equal(want[name], got[name]), name
