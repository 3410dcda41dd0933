"""Files of a prefix cache, one per part. Each contains the tokens of its whole prefix, so no file depends on another.

    header | ids: int32 [n_ids], the whole prefix | append ends: int32 [n_ends] | data

Writes are atomic: a file is written under a temporary name, synced and renamed. Checksums detect later damage. One
process uses a folder at a time.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lucebox.errors import FormatError
from lucebox.generation.prefix_cache.tree import Bytes, Kind
from lucebox.regular_files import open_regular

__all__ = ["Files", "PartFile"]

log = logging.getLogger("lucebox.generation.prefix_cache")

MAGIC = b"LBPREFIX"
VERSION = 2
PRIVATE = 0o600  # the files hold prompts
KINDS: tuple[Kind, ...] = ("pages", "state", "windows")
# magic, version, kind, ids, ends, first token of the segment, bytes of data, fingerprint
HEADER = struct.Struct("<8sIIQQQQ32s")
SUMS = struct.Struct("<II")  # CRC-32 of header, ids and ends; of the data


@dataclass(frozen=True, slots=True)
class PartFile:
    """The header of a file."""

    path: Path
    owner: str
    kind: Kind
    start: int
    """First token of the segment."""
    ids: NDArray[np.int32]
    """[n_ids], the whole prefix."""
    ends: tuple[int, ...]
    n_bytes: int
    """Size of the data."""
    data_sum: int
    """CRC-32 of the data."""


class Files:
    """The files of one fingerprint and some owners in a folder. Other models may keep their files there too.

    Raises:
        OSError: the folder cannot be created, or another process uses it.
    """

    def __init__(self, folder: Path, fingerprint: str, owners: Sequence[str]) -> None:
        self._folder = folder
        self._fingerprints = {owner: hashlib.sha256((fingerprint + owner).encode()).digest() for owner in owners}
        self._owner_of = {digest: owner for owner, digest in self._fingerprints.items()}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.fdopen(os.open(folder / "lock", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, PRIVATE), "w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise
        for unfinished in folder.glob("*.unfinished"):
            unfinished.unlink()

    def close(self) -> None:
        self._lock.close()

    def all(self) -> list[tuple[Path, int]]:
        """(path, bytes) of the files of all models, least recently used first."""
        found = []
        for kind in KINDS:
            for path in self._folder.glob(f"*.{kind}"):
                stat = path.stat()
                found.append((stat.st_mtime_ns, path, stat.st_size))
        return [(path, n_bytes) for _, path, n_bytes in sorted(found)]

    def read_all(self) -> Iterator[PartFile]:
        """The usable files of this fingerprint and these owners, ordered by prefix length, pages before the rest.

        Logs a warning for all others.
        """
        usable, foreign = [], 0
        for path, _ in self.all():
            try:
                with open_regular(path) as file:
                    found = self._read_header(file, path)
            except (OSError, FormatError) as error:
                log.warning("ignored a file of the prefix cache: %s", error)
                continue
            if found is None:
                foreign += 1
            else:
                usable.append(found)
        if foreign:
            log.warning("ignored %d files in %s of another model, version, API key or options", foreign, self._folder)
        yield from sorted(usable, key=lambda one: (len(one.ids), KINDS.index(one.kind)))

    def load(self, path: Path, kind: Kind, n_bytes: int) -> Bytes:
        """The data of a file.

        Raises:
            OSError, FormatError: the file is missing, damaged or another one.
        """
        with open_regular(path) as file:
            found = self._read_header(file, path)
            if found is None or (found.kind, found.n_bytes) != (kind, n_bytes):
                raise FormatError(f"{path}: the file was replaced by another one")
            data = np.fromfile(file, np.uint8)
        if zlib.crc32(data.data) != found.data_sum:
            raise FormatError(f"{path}: checksum mismatch; the data is damaged")
        return data

    def write(
        self, owner: str, kind: Kind, start: int, ids: NDArray[np.int32], ends: tuple[int, ...], data: Bytes
    ) -> tuple[Path, int]:
        """Writes a part; returns its file and the file's size in bytes."""
        fingerprint = self._fingerprints[owner]
        prefix = ids.tobytes() + np.array(ends, np.int32).tobytes()
        header = HEADER.pack(MAGIC, VERSION, KINDS.index(kind), len(ids), len(ends), start, data.nbytes, fingerprint)
        name = hashlib.sha256(fingerprint + prefix).hexdigest()[:40]
        path = self._folder / f"{name}.{kind}"
        unfinished = path.with_suffix(".unfinished")
        try:
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE)
            with os.fdopen(descriptor, "wb") as file:
                file.write(header + SUMS.pack(zlib.crc32(prefix, zlib.crc32(header)), zlib.crc32(data.data)) + prefix)
                file.write(data.data)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        self._sync_folder()
        return path, HEADER.size + SUMS.size + len(prefix) + data.nbytes

    def _sync_folder(self) -> None:
        """Makes a rename durable across a power loss."""
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _read_header(self, file: Any, path: Path) -> PartFile | None:
        """The header; leaves `file` at the data. None for another version, fingerprint or owner."""
        header = file.read(HEADER.size)
        if len(header) < HEADER.size or not header.startswith(MAGIC):
            raise FormatError(f"{path}: not a prefix cache file")
        _, version, kind, n_ids, n_ends, start, n_bytes, fingerprint = HEADER.unpack(header)
        owner = self._owner_of.get(fingerprint)
        if version != VERSION or owner is None:
            return None
        n_prefix = 4 * (n_ids + n_ends)
        if HEADER.size + SUMS.size + n_prefix + n_bytes != os.fstat(file.fileno()).st_size:
            raise FormatError(f"{path}: {os.fstat(file.fileno()).st_size} bytes; the file was truncated or extended")
        prefix_sum, data_sum = SUMS.unpack(file.read(SUMS.size))
        prefix = file.read(n_prefix)
        if zlib.crc32(prefix, zlib.crc32(header)) != prefix_sum or kind >= len(KINDS):
            raise FormatError(f"{path}: checksum mismatch; the header is damaged")
        ids = np.frombuffer(prefix, np.int32, n_ids)
        ends = tuple(np.frombuffer(prefix, np.int32, offset=4 * n_ids).tolist())
        return PartFile(path, owner, KINDS[kind], start, ids, ends, n_bytes, data_sum)
