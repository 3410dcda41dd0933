"""Computes a constraint's next mask in another thread, while the engine computes the logits.

A mask usually takes microseconds. With a hostile or unlucky grammar it takes seconds, and llguidance cannot be
interrupted: the sequence then waits, and the engine goes on with the others. A mask that takes longer than LIMIT_S
fails the request.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from lucebox.errors import InvalidRequestError
from lucebox.generation.decode import Constraint
from lucebox.generation.errors import BusyError

__all__ = ["LIMIT_S", "MaskAhead", "check_room", "run_within_limit"]

LIMIT_S = 3.0
"""For one mask, as for the compilation of a grammar."""
LONG_S = 0.2
"""A mask that takes longer is computed at a low priority."""
COUNTED_S = 1.0
MAX_ABANDONED, MAX_LONG = 32, 2
"""Computations of a sender that still run although their request has ended, and the ones among them that have run for
longer than COUNTED_S: more refuse its further constraints. A request often ends while its next mask is computed, so a
busy sender has many quick ones."""

Mask = NDArray[np.uint32]


class _Job:
    """A computation in another thread."""

    def __init__(self, compute: Callable[[], object], on_late_end: Callable[[], None], sender: str) -> None:
        self._compute = compute
        self._on_late_end = on_late_end
        self._sender = sender
        self._began = time.monotonic()
        self._done = threading.Event()
        self._lock = threading.Lock()
        self.is_late = False  # the caller no longer waits
        self._thread_id = 0
        self._has_low_priority = False
        self._result: object = None
        self._error: Exception | None = None

    def run(self) -> bool:
        """Runs the computation; False: its thread has a low priority now."""
        self._thread_id = threading.get_native_id()
        if self in _abandoned.get(self._sender, ()):
            self.lower_priority(after_s=0)
        try:
            self._result = self._compute()
        except Exception as error:
            self._error = error
        with self._lock:
            self._done.set()
            is_late = self.is_late
            _abandoned.get(self._sender, set()).discard(self)
        if is_late:
            self._on_late_end()
        return not self._has_low_priority

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    @property
    def has_result(self) -> bool:
        return self.is_done and self._error is None

    def wait(self, seconds: float) -> bool:
        return self._done.wait(seconds)

    def set_late(self) -> None:
        """Notes that the caller no longer waits, so that the end is reported."""
        with self._lock:
            if self.is_late or self._done.is_set():
                return
            self.is_late = True
        self.lower_priority()

    def lower_priority(self, after_s: float = LONG_S) -> None:
        """Lets a computation that has run for so long compete less for a core."""
        with self._lock:  # until then the thread is not another job's
            is_long = not self._done.is_set() and self.seconds >= after_s
            if is_long and not self._has_low_priority and sys.platform == "linux" and self._thread_id:
                self._has_low_priority = True
                os.setpriority(os.PRIO_PROCESS, self._thread_id, 15)

    def abandon(self) -> None:
        """Counts the job against its sender until it ends, because nobody waits for it any more."""
        self.set_late()
        with self._lock:
            if not self._done.is_set():
                _abandoned[self._sender].add(self)
        self.lower_priority(after_s=0)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def is_over_limit(self) -> bool:
        return not self.is_done and self.seconds > LIMIT_S

    def result(self) -> object:
        """The result of a job that is done or over the limit.

        Raises:
            InvalidRequestError: it is over the limit. It runs on, and counts against its sender meanwhile.
        """
        if not self._done.wait(max(0.0, LIMIT_S - self.seconds)):
            self.abandon()
            raise InvalidRequestError(f"the constraint is too complex: it takes more than {LIMIT_S:g} s")
        if self._error is not None:
            raise self._error
        return self._result


_abandoned: defaultdict[str, set[_Job]] = defaultdict(set)  # by sender
_idle: list[SimpleQueue[_Job | None]] = []  # the queues of idle threads
_running: set[_Job] = set()


def _start(job: _Job) -> None:
    _running.add(job)
    try:
        queue = _idle.pop()
    except IndexError:
        queue = SimpleQueue()
        threading.Thread(target=_work, args=(queue,), name="lucebox-mask", daemon=True).start()
    queue.put(job)


def _work(queue: SimpleQueue[_Job | None]) -> None:
    while (job := queue.get()) is not None:
        may_go_on = job.run()
        _running.discard(job)
        del job
        if not may_go_on:
            return  # no thread may raise its own priority again
        _idle.append(queue)


def _forget() -> None:
    """In a forked child, which has none of the threads."""
    for kept in (_abandoned, _idle, _running):
        kept.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@atexit.register
def _finish() -> None:
    """At exit, lets running computations end: the interpreter must not stop a thread inside a library."""
    for job in list(_running):
        job.wait(LIMIT_S)


def check_room(sender: str) -> None:
    """Refuses a sender whose earlier computations still run.

    Raises:
        BusyError: there are too many of them.
    """
    running = list(_abandoned.get(sender, ()))
    if len(running) > MAX_ABANDONED or sum(job.seconds > COUNTED_S for job in running) > MAX_LONG:
        raise BusyError("constraints of your earlier requests are still being computed")


def run_within_limit(compute: Callable[[], object], sender: str) -> object:
    """Runs a computation that cannot be interrupted; waits at most LIMIT_S.

    Raises:
        InvalidRequestError: it takes longer.
        BusyError: as check_room.
    """
    check_room(sender)
    job = _Job(compute, lambda: None, sender)
    _start(job)
    return job.result()


class MaskAhead:
    """A constraint whose mask is computed ahead (decode.Constraint). One thread calls it."""

    def __init__(self, constraint: Constraint, sender: str, on_late: Callable[[], None]) -> None:
        """on_late: called in another thread when a mask is ready that was late.

        Raises:
            BusyError: as check_room.
        """
        self._constraint = constraint
        self._sender = sender
        self._on_late = on_late
        self._done = False
        check_room(sender)
        self._compute()

    def _compute(self) -> None:
        self._done = self._constraint.done
        self._job = _Job(self._constraint.mask, self._on_late, self._sender)
        _start(self._job)

    @property
    def done(self) -> bool:
        return self._done

    @property
    def is_ready(self) -> bool:
        """Whether mask() returns or fails without delay."""
        return self._job.is_done or self._job.is_over_limit

    def wait(self, seconds: float) -> bool:
        """Waits for the mask, which is late if it takes longer; whether there is one. A late mask is not waited for."""
        if self._job.is_late:
            self._job.lower_priority()
        elif not self._job.wait(max(0.0, seconds)):
            self._job.set_late()
        return self._job.has_result

    def abandon(self) -> None:
        """Ends the use of the constraint, whose mask may still be computed."""
        self._job.abandon()

    def mask(self) -> Mask | None:
        """As Constraint.mask.

        Raises:
            InvalidRequestError: the mask takes too long.
        """
        mask = self._job.result()
        assert mask is None or isinstance(mask, np.ndarray)
        return mask

    def accept(self, token: int) -> None:
        """As Constraint.accept."""
        self.mask()
        self._constraint.accept(token)
        self._compute()
