"""Requests that meet the fault of a device, for tests of models on several devices."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable

import numpy as np
from lucebox import _engine
from lucebox.errors import DeviceError
from reference.gguf_files import Shape

SHAPE = Shape("qwen3", "Q8_0", n_layers=2, hidden=256, ffn=1024, n_heads=8, n_kv_heads=4, head_dim=64, vocab=160)


def fails(work: Callable[[], object], error: str, beside: Callable[[], object] = lambda: None) -> float:
    """Seconds until `work` fails with this error. beside: runs at the same time."""
    seconds: list[float] = []
    texts: list[str] = []

    def run() -> None:
        start = time.monotonic()
        try:
            work()
        except DeviceError as caught:
            seconds.append(time.monotonic() - start)
            texts.append(str(caught))

    thread = threading.Thread(target=run)
    thread.start()
    beside()
    thread.join()
    assert texts and re.match(error, texts[0]), texts
    return seconds[0]


def write(session: _engine.Session, ids: list[int], n: int) -> list[int]:
    """ids, continued by n tokens."""
    sampler = _engine.Sampler(SHAPE.vocab)
    for _ in range(n):
        session.sync(np.array(ids, np.int32))
        ids = [*ids, session.sample(sampler)]
    return ids


def wait_until_right(session: _engine.Session, ids: list[int]) -> None:
    """Asks until the rank has ended the work of the lost requests, which takes seconds on the simulator."""
    for _ in range(20):
        try:
            session.sync(np.array(ids, np.int32))
            return
        except DeviceError as error:
            assert "still has not ended the work" in str(error)
    raise AssertionError("the rank never ended its work")
