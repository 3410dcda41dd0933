"""Compiled files by the hash of all that they are made from, in a folder that every checkout of the machine can use.

An entry is the hash of a zip and the zip, under another name until it is whole, so that builds that run at the same
time cannot see a part of one. A damaged entry counts as missing. Nothing else ever reads the folder: deleting it, or a
file of it, costs only time.
"""

from __future__ import annotations

import hashlib
import io
import os
import uuid
import zipfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

Files = dict[str, bytes]  # by what they are: "ptx", "code", "log"


def digest(parts: Iterable[str | bytes]) -> str:
    """A hash of the parts and of where each of them ends."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(b"%d " % len(data))
        found.update(data)
    return found.hexdigest()


class Store:
    def __init__(self, folder: Path | None) -> None:
        """None: a store that keeps nothing."""
        self.folder = folder

    def made(self, parts: Iterable[str | bytes], make: Callable[[], Files]) -> Files:
        """The files that `make` returns, from the store if it has been called for the same parts before."""
        if self.folder is None:
            return make()
        key = digest(parts)
        entry = self.folder / key[:2] / f"{key[2:]}.zip"
        if (found := _read(entry)) is not None:
            return found
        files = make()
        entry.parent.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        part = entry.with_suffix(f".{uuid.uuid4().hex}")  # containers that share the folder may share process ids
        part.write_bytes(hashlib.sha256(content.getvalue()).digest() + content.getvalue())
        part.replace(entry)
        return files

    def prune(self, limit: int) -> int:
        """Removes the entries that were not used for longest, until `limit` bytes are left. Returns what it removed."""
        entries = []
        for file in self.folder.glob("*/*") if self.folder else ():
            with suppress(FileNotFoundError):  # another build renamed or removed it
                entries.append((file.stat(), file))
        total, removed = sum(facts.st_size for facts, _ in entries), 0
        for facts, file in sorted(entries, key=lambda entry: entry[0].st_mtime):
            if total - removed <= limit:
                break
            file.unlink(missing_ok=True)
            removed += facts.st_size
        return removed


def _read(entry: Path) -> Files | None:
    try:
        data = entry.read_bytes()
        os.utime(entry)  # as used now, for prune
    except OSError:
        return None
    content = data[hashlib.sha256().digest_size :]
    if not data.startswith(hashlib.sha256(content).digest()):
        return None
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}
