"""Memory of this process: what its limit leaves, and what its allocator keeps."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["free_address_space", "give_memory_back"]


def free_address_space() -> float:
    """Bytes that the process's limit (`ulimit -v`) leaves; infinity without one."""
    if sys.platform == "win32":
        return float("inf")
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return float("inf")
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except OSError:  # not Linux
        return float("inf")
    return limit - pages * resource.getpagesize()


def _trim() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # not glibc
        return None
    return found


_malloc_trim = _trim()


def give_memory_back() -> None:
    """Returns freed memory to the system. glibc keeps it otherwise: gigabytes after one large text."""
    if _malloc_trim is not None:
        _malloc_trim(0)
