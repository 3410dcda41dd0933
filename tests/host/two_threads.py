"""Times two generations in two threads of one `LLM` against running them in turn."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from lucebox import LLM

ROUNDS = 8
PROMPTS = ("def add(a, b):\n    ", "class Stack:\n    ")


def times(llm: LLM, max_tokens: int, clock: Callable[[], float] = time.perf_counter) -> tuple[float, float]:
    """Seconds of the fastest round in turn, and of the fastest in two threads: other work on the machine only slows a
    round down. The sides take turns, and the ids are compared.

    clock: `time.process_time` on the CPU, where other processes take cores.
    """

    def generate(i: int) -> tuple[int, ...]:
        return llm.generate(PROMPTS[i], max_tokens=max_tokens, ignore_eos=True).ids

    def in_threads() -> list[tuple[int, ...]]:
        got: dict[int, tuple[int, ...]] = {}
        threads = [threading.Thread(target=lambda i=i: got.update({i: generate(i)})) for i in range(len(PROMPTS))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [got[i] for i in range(len(PROMPTS))]

    def timed(work: Callable[[], list[tuple[int, ...]]]) -> float:
        began = clock()
        assert work() == alone
        return clock() - began

    alone = [generate(i) for i in range(len(PROMPTS))]
    in_threads()  # makes the second session
    pairs = [(timed(lambda: [generate(i) for i in range(len(PROMPTS))]), timed(in_threads)) for _ in range(ROUNDS)]
    return min(one for one, _ in pairs), min(other for _, other in pairs)
