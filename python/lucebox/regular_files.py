"""Reads small untrusted files: only regular files up to a size limit, so that a pipe or device cannot block."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from lucebox.errors import FormatError

__all__ = ["open_regular", "read_regular"]


def open_regular(path: Path) -> BinaryIO:
    """A regular file, for reading.

    Raises:
        FormatError: it is a folder, a pipe, a device or a socket. OSError: it cannot be opened.
    """
    # O_NONBLOCK: opening a named pipe must not wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FormatError(f"{path}: expected a regular file, found a folder, device, pipe or socket")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, max_bytes: int) -> bytes:
    """The content of a regular file.

    Raises:
        FormatError: it is no regular file, or larger than `max_bytes`. OSError: it cannot be read.
    """
    with open_regular(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise FormatError(f"{path}: more than {max_bytes} bytes")
    return data
