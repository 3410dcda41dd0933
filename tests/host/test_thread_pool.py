"""The worker pool behind the ops: any number of threads gives the same values, and invalid counts are rejected."""

from __future__ import annotations

import numpy as np
import pytest
from lucebox.errors import InvalidRequestError
from lucebox.selftest import ops


@pytest.mark.parametrize("threads", (2, 3, 8))
def test_more_threads_than_cores(threads: int) -> None:
    gate, up = np.random.default_rng(0).normal(size=(2, 300, 500)).astype(np.float32)
    want = ops.swiglu(gate, up, threads=1)
    for _ in range(20):
        assert np.array_equal(ops.swiglu(gate, up, threads=threads), want)


@pytest.mark.parametrize("threads", (0, -1, 1025))
def test_thread_counts_out_of_range(threads: int) -> None:
    x = np.zeros((1, 8), np.float32)
    with pytest.raises(InvalidRequestError, match=f"threads must be between 1 and 1024, got {threads}"):
        ops.swiglu(x, x, threads=threads)
