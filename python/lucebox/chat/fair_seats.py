"""Seats that senders share: each holds at most one, and the one that got none for the longest time is next."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lucebox.chat.presence import check_present
from lucebox.generation.errors import BusyError

__all__ = ["FairSeats"]

POLL_S = 0.05


class FairSeats:
    """Safe to share between threads."""

    def __init__(self, n: int, max_waiting: int) -> None:
        """max_waiting: of one sender."""
        self._n_free = n
        self._max_waiting = max_waiting
        self._changed = threading.Condition()
        self._order = itertools.count(1)
        self._granted: dict[str, int] = {}  # the order of each sender's last grant
        self._holders: set[str] = set()
        self._waiting: list[tuple[int, str]] = []  # (order of arrival, sender)

    @contextmanager
    def seat(self, sender: str) -> Iterator[None]:
        """Waits for a seat and holds it.

        Raises:
            BusyError: too many requests of the sender wait.
            CancelledError: the client has left.
        """
        with self._changed:
            if sum(one == sender for _, one in self._waiting) >= self._max_waiting:
                raise BusyError("too many of your requests have grammars that take long to compile")
            place = next(self._order), sender
            self._waiting.append(place)
            try:
                while not self._is_next(place):
                    self._changed.wait(POLL_S)
                    check_present()
                self._n_free -= 1
                self._holders.add(sender)
                self._granted[sender] = next(self._order)
            finally:
                self._waiting.remove(place)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._n_free += 1
                self._holders.discard(sender)
                self._changed.notify_all()

    def _is_next(self, place: tuple[int, str]) -> bool:
        if not self._n_free:
            return False
        able = [(self._granted.get(sender, 0), order, sender) for order, sender in self._waiting]
        able = [one for one in able if one[2] not in self._holders]
        return bool(able) and min(able)[1:] == place
