"""How long a call keeps other threads of Python waiting."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable


def longest_gap(work: Callable[[], object]) -> float:
    """The longest time that another thread, always ready to run, waits for the GIL, as a share of the time that `work`
    takes. The clock is the CPU time of the thread that works: the machine may have other work."""
    over, clock = threading.Event(), time.pthread_getcpuclockid(threading.get_ident())
    ticks = [time.clock_gettime(clock)]

    def tick() -> None:
        while not over.wait(0.001):
            ticks.append(time.clock_gettime(clock))

    thread = threading.Thread(target=tick)
    thread.start()
    work()
    ticks.append(time.clock_gettime(clock))
    over.set()
    thread.join()
    ticks.sort()
    return max(b - a for a, b in itertools.pairwise(ticks)) / (ticks[-1] - ticks[0])
