"""Exceptions with which a scheduler refuses or ends a request."""

from __future__ import annotations

from lucebox.errors import LuceboxError

__all__ = ["BusyError", "DeadlineError", "QueueFullError", "SchedulerClosedError"]


class QueueFullError(LuceboxError):
    """The queue has no room for the request."""

    def __init__(self, n_waiting: int) -> None:
        super().__init__(f"the queue is full: {n_waiting} requests wait")
        self.n_waiting = n_waiting


class BusyError(LuceboxError):
    """The sender already uses its share of something that all requests need; it may try again later."""


class DeadlineError(LuceboxError):
    """The request was not started, or not finished, in time."""


class SchedulerClosedError(LuceboxError):
    """The scheduler takes and runs no more requests."""
