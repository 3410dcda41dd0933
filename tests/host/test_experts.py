"""Mixtures of experts on the CPU: what only the CPU promises. Their cases are in op_cases.py."""

from __future__ import annotations

import numpy as np
from lucebox.selftest import ops


def test_threads_change_no_bit(isa: str) -> None:
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(9, 64, 96)).astype(np.float32), rng.normal(size=(70, 96)).astype(np.float32)
    experts = np.array([rng.permutation(9)[:3] for _ in range(70)], np.int32)
    one, two = (
        ops.expert_linear(w.view(np.uint8).reshape(-1), "F32", 9, 64, x, experts, isa=isa, threads=n) for n in (1, 2)
    )
    assert np.array_equal(one, two)
