"""Exceptions with which a scheduler refuses or ends a request."""

from __future__ import annotations

from lucebox.errors import InvalidRequestError, LuceboxError

__all__ = ["BusyError", "DeadlineError", "PromptTooLongError", "QueueFullError", "SchedulerClosedError"]


class PromptTooLongError(InvalidRequestError):
    """The prompt leaves no room for an answer of at least one token."""

    def __init__(self, n_tokens: int, context: int) -> None:
        super().__init__(
            f"the prompt has {n_tokens} tokens; the context holds {context}. Load with a larger context, or shorten it"
        )
        self.n_tokens = n_tokens
        self.context = context


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
