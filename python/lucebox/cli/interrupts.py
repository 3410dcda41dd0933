"""Ctrl-C while modules load. An exception out of a half-imported extension module can look like anything, so the
process ends at once, with one line."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lucebox.interrupted import EXIT_INTERRUPTED, leave

__all__ = ["EXIT_INTERRUPTED", "importing"]


@contextmanager
def importing() -> Iterator[None]:
    """Imports within it end at Ctrl-C without a traceback."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
