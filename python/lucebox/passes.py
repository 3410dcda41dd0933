"""Passes over the weights that generations of several threads share: each computes the next rows of all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress

from lucebox import _engine
from lucebox.errors import LuceboxError
from lucebox.text import Ids

__all__ = ["Passes"]

PATIENCE_S = 0.002  # a thread that comes back later is reading what it was given, or waits for its reader


class Passes:
    """Joins the next rows of generations that decode at the same time."""

    def __init__(self, turn: AbstractContextManager[object]) -> None:
        """turn: held while a pass computes."""
        self._turn = turn
        self._changed = threading.Condition()
        self._expected: dict[_engine.Session, int] = {}  # sessions that will soon come again, with their threads
        self._waiting: dict[_engine.Session, Ids] = {}
        self._computing: dict[_engine.Session, Ids] = {}
        self._ended_at = 0.0  # the last pass

    def join(self, session: _engine.Session, ids: Ids) -> None:
        """Computes what `session.sync(ids)` would, together with the rows of others that come now. Where it is the only
        one, or the pass fails, nothing: the caller's `sync` computes it then, or raises."""
        with self._changed:
            came_at = time.perf_counter()
            self._expected[session] = threading.get_ident()
            self._waiting[session] = ids
            self._changed.notify_all()
            try:
                while session in self._waiting and (wait_s := self._wait_s(session, came_at)) != 0:
                    self._changed.wait(wait_s)
                is_first = session in self._waiting
                if is_first and len(self._waiting) > 1:
                    self._computing, self._waiting = self._waiting, {}
                while not is_first and session in self._computing:
                    self._changed.wait()
            finally:
                self._waiting.pop(session, None)
        if is_first and session in self._computing:
            self._compute()

    def compute(self, rows: Mapping[_engine.Session, Ids]) -> None:
        """One pass for these rows; nothing where it fails, as in `join`."""
        with self._turn, suppress(LuceboxError):
            _engine.sync_together(list(rows), list(rows.values()))

    def leave(self, session: _engine.Session) -> None:
        """This session's generation has ended."""
        with self._changed:
            self._expected.pop(session, None)
            self._changed.notify_all()

    def _wait_s(self, session: _engine.Session, came_at: float) -> float | None:
        """Seconds to wait for others; 0: none is about to come; None: until the pass that computes has ended. Who is
        late is not waited for again."""
        if self._computing:
            return None
        me = self._expected.get(session)
        late = [one for one, thread in self._expected.items() if thread != me and one not in self._waiting]
        left_s = max(came_at, self._ended_at) + PATIENCE_S - time.perf_counter()
        if late and left_s > 0:
            return left_s
        for one in late:
            del self._expected[one]
        return 0

    def _compute(self) -> None:
        try:
            self.compute(self._computing)
        finally:
            with self._changed:
                self._computing = {}
                self._ended_at = time.perf_counter()
                self._changed.notify_all()
