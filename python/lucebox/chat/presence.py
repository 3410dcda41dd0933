"""Detects that the client has disconnected while a thread prepares its request."""

from __future__ import annotations

import threading
from contextvars import ContextVar

from lucebox.errors import CancelledError

__all__ = ["LEFT", "check_present", "set_left"]

LEFT = "the client has disconnected"

_LEFT: ContextVar[threading.Event | None] = ContextVar("left", default=None)


def set_left(left: threading.Event) -> None:
    """Sets the event that signals a disconnect, until this thread's next request."""
    _LEFT.set(left)


def check_present() -> None:
    """Raises if the client has left. Called between the steps of long preparations.

    Raises:
        CancelledError: the client has disconnected.
    """
    left = _LEFT.get()
    if left is not None and left.is_set():
        raise CancelledError(LEFT)
