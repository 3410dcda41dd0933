"""Reads small files and JSON that a user names: a wrong one is one clear error, and none can block or fill memory."""

from __future__ import annotations

import json
import os
import select
import stat
import time
from typing import Any

from lucebox.errors import InvalidRequestError
from lucebox.regular_files import foreign_content

__all__ = ["decoded", "json_object", "parsed_json", "read_bytes", "read_text"]

MAX_BYTES = 1 << 26
PIPE_SECONDS = 30.0  # for process substitution, <(command), whose command may take a while
_CHUNK = 1 << 16


def read_bytes(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> bytes:
    """The content of a regular file, or of a pipe whose other end writes.

    Raises:
        InvalidRequestError: there is no such file, it is a folder or a device, too large, or a pipe that stays silent.
    """
    shown = os.fspath(path)
    try:
        # O_NONBLOCK: opening a named pipe must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise InvalidRequestError(f"{shown}: {getattr(error, 'strerror', None) or error}") from None
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
            found = "a folder" if stat.S_ISDIR(mode) else "a device or socket"
            raise InvalidRequestError(f"{shown}: expected a file, found {found}")
        return _all(descriptor, shown, max_bytes, is_pipe=stat.S_ISFIFO(mode))
    except OSError as error:
        raise InvalidRequestError(f"{shown}: {error.strerror or error}") from None
    finally:
        os.close(descriptor)


def _all(descriptor: int, shown: str, max_bytes: int, *, is_pipe: bool) -> bytes:
    data = bytearray()
    deadline = time.monotonic() + PIPE_SECONDS
    while len(data) <= max_bytes:
        if is_pipe and not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise InvalidRequestError(f"{shown}: a pipe that stays silent for {PIPE_SECONDS:.0f} s")
        chunk = os.read(descriptor, _CHUNK)
        if not chunk:
            return bytes(data)
        data += chunk
    raise InvalidRequestError(f"{shown}: more than {max_bytes} bytes")


def read_text(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> str:
    """The content of a UTF-8 file, as `read_bytes` and `decoded`."""
    return decoded(read_bytes(path, max_bytes), os.fspath(path))


def decoded(data: bytes, where: str) -> str:
    """UTF-8 text with \\n as line end; a byte order mark is dropped.

    Raises:
        InvalidRequestError: the bytes are of another encoding; the message says how to convert them.
    """
    if other := foreign_content(data):
        raise InvalidRequestError(f"{where}: {other}")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"{where} is not UTF-8 text (byte 0x{data[error.start]:02x} at offset {error.start}); convert it first, "
            "for example: iconv -f latin1 -t utf-8"
        ) from None


def parsed_json(text: str, where: str) -> Any:
    """The value of a JSON text.

    Raises:
        InvalidRequestError: the text is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequestError(f"{where} is not JSON: {error}") from None
    except RecursionError:
        raise InvalidRequestError(f"{where} is JSON that is nested too deeply") from None


def json_object(text: str, where: str) -> dict[str, Any]:
    """The object of a JSON text, as `parsed_json`."""
    value = parsed_json(text, where)
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{where} holds {type(value).__name__}, expected a JSON object")
    return value
