"""The driver role: one thread at a time runs the scheduler for all threads; the others wait for its results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Driver"]


class Driver:
    """Grants the driver role to one thread at a time. A waiting thread takes the role if it is free, and leaves it once
    its own result is ready."""

    def __init__(
        self, has_turn: Callable[[], bool], step: Callable[[], None], check_progress: Callable[[set[int]], None]
    ) -> None:
        """has_turn: whether `step` has work. check_progress(waiting): raises if no thread outside `waiting` can make
        progress, so that waiting would be a deadlock."""
        self.changed = threading.Condition()
        """Guards the state that has_turn reads."""
        self._has_turn = has_turn
        self._step = step
        self._check_progress = check_progress
        self._owner: int | None = None  # the thread that has the role, entered _depth times
        self._depth = 0
        self._n_claims = 0  # threads waiting to claim the role after the current step
        self._waiting: list[Callable[[], bool]] = []  # wait conditions of the waiting threads
        self._idle: set[int] = set()  # threads that wait although there is no work
        self._is_stepping = False

    @property
    def is_stepping_here(self) -> bool:
        """Whether this thread is inside a step: a finalizer may run there."""
        return self._is_stepping and self._owner == threading.get_ident()

    def notify(self) -> None:
        """Signals that the state read by has_turn has changed."""
        with self.changed:
            self.changed.notify_all()

    def run_until(self, is_ready: Callable[[], bool], *, may_idle: bool = False) -> None:
        """Drives in this thread, or waits for the driver thread, until is_ready().

        may_idle: wait for other threads to submit work. Otherwise check_progress breaks a deadlock."""
        while self._take_role(is_ready, may_idle=may_idle):
            try:
                while self._has_turn() and (self._n_claims == 0 or self._depth > 1):
                    self._is_stepping = True
                    try:
                        self._step()
                    finally:
                        self._is_stepping = False
                    if is_ready():
                        return
                    if self._waiting:
                        self._wake()
            finally:
                self._leave_role()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Excludes all other drivers for the duration of the block. Reentrant."""
        self.claim()
        try:
            yield
        finally:
            self._leave_role()

    def claim(self) -> None:
        """Takes the role after the current step."""
        with self.changed:
            self._n_claims += 1
            try:
                self.changed.wait_for(self._is_free)
            finally:
                self._n_claims -= 1
                self.changed.notify_all()
            self._enter()

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        """Waits for changes by other threads until is_ready(). The caller holds `changed`."""
        while not is_ready():
            self._wait_idle()

    def _take_role(self, is_ready: Callable[[], bool], *, may_idle: bool) -> bool:
        """Waits for the role and for work; False: is_ready() became true first."""
        with self.changed:
            self._waiting.append(is_ready)  # before is_ready() is checked: the driver scans this list after each step
            try:
                while not is_ready():
                    if not self._is_free() or (self._n_claims > 0 and self._depth == 0):
                        self.changed.wait()
                    elif self._has_turn():
                        self._enter()
                        return True
                    elif may_idle:
                        self.changed.wait()
                    else:
                        self._wait_idle()
                return False
            finally:
                self._waiting.remove(is_ready)

    def _is_free(self) -> bool:
        return self._owner in (None, threading.get_ident())

    def _enter(self) -> None:
        self._owner = threading.get_ident()
        self._depth += 1

    def _leave_role(self) -> None:
        with self.changed:
            self._depth -= 1
            if self._depth == 0:
                self._owner = None
            self.changed.notify_all()

    def _wake(self) -> None:
        """Wakes the waiting threads if one's condition is met."""
        with self.changed:
            if any(is_ready() for is_ready in self._waiting):
                self.changed.notify_all()

    def _wait_idle(self) -> None:
        me = threading.get_ident()
        self._check_progress(self._idle | {me})
        self._idle.add(me)
        try:
            self.changed.wait()
        finally:
            self._idle.discard(me)
