"""Divides the energy of a device among requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["MIN_SECONDS", "EnergyShares"]

MIN_SECONDS = 0.5  # counters update every 20 to 100 ms, so less time has no meaningful energy


@dataclass(slots=True)
class _Share:
    began: float
    joules: float = 0.0


class EnergyShares:
    """The requests that run at a time get equal shares of the energy of that time."""

    def __init__(self, read: Callable[[], float] | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        """read: the device's energy counter in joules; may raise OSError. None: no request gets a share."""
        self._read, self._clock = read, clock
        self._shares: dict[int, _Share] = {}
        self._last = 0.0

    def begin(self, request: object) -> None:
        self._settle()
        if self._read is not None:
            self._shares[id(request)] = _Share(self._clock())

    def end(self, request: object) -> float | None:
        """Joules of a request that is over. None: it had no share, or was too short to measure."""
        if id(request) not in self._shares:
            return None
        self._settle()
        share = self._shares.pop(id(request), None)
        if share is None or self._clock() - share.began < MIN_SECONDS or share.joules <= 0:
            return None
        return share.joules

    def _settle(self) -> None:
        """Divides the energy since the last call. A counter that fails ends all shares."""
        if self._read is None:
            return
        try:
            now = self._read()
        except OSError:
            self._read = None
            self._shares.clear()
            return
        for share in self._shares.values():
            share.joules += (now - self._last) / len(self._shares)
        self._last = now
