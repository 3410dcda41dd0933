"""SHA-256 of fetched files, each computed once: a record stores the hash with the file's size, mtime and inode."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lucebox.errors import FormatError, HubError
from lucebox.regular_files import open_regular, read_regular

__all__ = ["check_once"]

CHUNK = 1 << 20
MAX_RECORD = 1 << 10  # bytes


def check_once(
    path: Path, sha256: str, records: Path, progress: Callable[[int, int], None] = lambda done, total: None
) -> None:
    """Verifies a file's hash, unless a record shows that this very file was verified before.

    records: the folder of the records, which is made if it is missing.
    progress: called with bytes done and bytes in total.

    Raises:
        HubError: the file has another hash. OSError, FormatError: it cannot be read.
    """
    real = path.resolve()
    status = real.stat()
    known = f"{status.st_size} {status.st_mtime_ns} {status.st_ino} {sha256}"
    record = records / hashlib.sha256(os.fsencode(real)).hexdigest()
    with suppress(OSError, FormatError):
        if read_regular(record, MAX_RECORD).decode("ascii", "replace") == known:
            return
    digest = hashlib.sha256()
    with open_regular(real) as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            progress(file.tell(), status.st_size)
    if digest.hexdigest() != sha256:
        raise HubError(f"{real} has sha256 {digest.hexdigest()}, expected {sha256}. Delete it and fetch it again")
    with suppress(OSError):  # without a record the next check reads the file again
        records.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = record.with_suffix(f".{os.getpid()}")
        unfinished.write_text(known, encoding="ascii")
        unfinished.replace(record)
