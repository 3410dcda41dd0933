"""Reads small untrusted files: only regular files up to a size limit, so that a pipe or device cannot block."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from lucebox.errors import FormatError

__all__ = ["foreign_content", "open_regular", "read_regular"]

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_WEB_PAGE = (b"<!doctype html", b"<html")
_WIDE = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)


def foreign_content(data: bytes) -> str | None:
    """Names a known placeholder for a file's content and how to get the content; None: no known placeholder."""
    if data.startswith(_LFS_POINTER):
        return "it is a Git LFS pointer, not the file itself; fetch it with: git lfs pull"
    if data[:64].lstrip().lower().startswith(_WEB_PAGE):
        return "it is a web page, saved in place of the file; download the file itself"
    for mark, name in _WIDE:
        if data.startswith(mark):
            return f"it is {name} text; convert it, for example: iconv -f {name.lower()} -t utf-8"
    return None


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
