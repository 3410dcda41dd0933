"""The driver's role: one thread at a time computes for all, and the others wait for what it computes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Driver"]


class Driver:
    """Lets one thread at a time compute. A thread that waits for something takes the role if nobody has it, and leaves
    it once it has what it waits for."""

    def __init__(
        self, has_turn: Callable[[], bool], step: Callable[[], None], check_progress: Callable[[set[int]], None]
    ) -> None:
        """has_turn: whether `step` has something to compute. check_progress: raises where none of the threads outside
        this set has anything that others wait for."""
        self.changed = threading.Condition()
        """Held to change what has_turn looks at."""
        self._has_turn = has_turn
        self._step = step
        self._check_progress = check_progress
        self._owner: int | None = None  # the thread that has the role, as often as _depth says
        self._depth = 0
        self._n_claims = 0  # threads that want the role after the step in progress
        self._waiting: list[Callable[[], bool]] = []  # what the waiting threads wait for
        self._idle: set[int] = set()  # threads that wait while there is nothing to compute
        self._is_stepping = False

    @property
    def is_stepping_here(self) -> bool:
        """Whether this thread is inside of a step: a finalizer may run there."""
        return self._is_stepping and self._owner == threading.get_ident()

    def notify(self) -> None:
        """What has_turn looks at has changed."""
        with self.changed:
            self.changed.notify_all()

    def run_until(self, is_ready: Callable[[], bool], *, may_idle: bool = False) -> None:
        """Computes in this thread, or waits for the one that does, until is_ready().

        may_idle: the thread waits for others to submit something. Else check_progress ends a wait that has no end."""
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
        """Nobody computes meanwhile. A thread may enter it again."""
        self.claim()
        try:
            yield
        finally:
            self._leave_role()

    def claim(self) -> None:
        """Takes the role after the step in progress."""
        with self.changed:
            self._n_claims += 1
            try:
                self.changed.wait_for(self._is_free)
            finally:
                self._n_claims -= 1
                self.changed.notify_all()
            self._enter()

    def wait_until(self, is_ready: Callable[[], bool]) -> None:
        """Waits for a change by others. The caller holds `changed`."""
        while not is_ready():
            self._wait_idle()

    def _take_role(self, is_ready: Callable[[], bool], *, may_idle: bool) -> bool:
        """Waits for the role and something to compute; False: is_ready() came first."""
        with self.changed:
            self._waiting.append(is_ready)  # before it is asked: the driver looks at this list after each step
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
        """Wakes the waiting threads where one has what it waits for."""
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
