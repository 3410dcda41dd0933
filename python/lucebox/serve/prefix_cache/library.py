"""What is kept and where: the tree of prefixes, its bytes in memory and in files, what goes when there are too many.

Files are written by a thread of their own, a prefix before what goes on from it, from the bytes that memory holds
anyway: what is forgotten before its turn is not written."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np

from lucebox.errors import FormatError
from lucebox.serve.prefix_cache.files import Files, Stored
from lucebox.serve.prefix_cache.plan import Segment
from lucebox.serve.prefix_cache.tree import Bytes, LeastRecent, Node, Part

__all__ = ["Library"]

log = logging.getLogger("lucebox.serve.prefix_cache")


class Library:
    """Parts by the prefixes they belong to. The caller holds `changed` around every call but `close`."""

    def __init__(self, memory_bytes: int, folder: Path | None, fingerprint: str, disk_bytes: int) -> None:
        self.changed = threading.Condition()
        self.root = Node()
        self.memory: LeastRecent[Part] = LeastRecent(memory_bytes)
        self.disk: LeastRecent[Path] = LeastRecent(disk_bytes)
        self.n_nodes = self.n_evicted = self.n_damaged = 0
        self._filed: dict[Path, Part] = {}
        self._unwritten: dict[Part, None] = {}
        self._is_closed = False
        self._files = None if folder is None else self._open(folder, fingerprint)
        self._is_writing = self._files is not None
        self._writer = threading.Thread(target=self._write_behind, name="lucebox-prefix-cache", daemon=True)
        if self._is_writing:
            self._writer.start()

    def close(self) -> None:
        """Writes what is still unwritten, and forgets everything."""
        with self.changed:
            self._is_closed = True
            self.changed.notify()
        if self._files is not None:
            self._writer.join()
            self._files.close()
            self._files = None
        with self.changed:
            for part in self.memory.all():
                part.data = None
                self.memory.remove(part)
            self.root = Node()

    def walk(self, segments: Iterable[Segment]) -> list[Node]:
        """The nodes of a prompt's segments, as far as there are any. Every token is compared."""
        path = [self.root]
        for segment in segments:
            child = path[-1].children.get(segment.key)
            if child is None:
                break
            path.append(child)
        return path[1:]

    def add(self, parent: Node, segment: Segment, pages: Bytes) -> Node:
        node = self._attach(parent, segment)
        node.pages = self._kept(Part(node, "pages", pages.nbytes), pages)
        return node

    def add_state(self, node: Node, state: Bytes) -> None:
        node.state = self._kept(Part(node, "state", state.nbytes), state)

    def load(self, parts: Iterable[Part]) -> list[Bytes] | None:
        """The bytes of parts; None: one could not be read, and is forgotten."""
        data = []
        for part in parts:
            if part.data is None:
                try:
                    part.data = self._read(part)
                except (OSError, FormatError) as error:
                    log.warning("ignored a file of the prefix cache: %s", error)
                    self.n_damaged += 1
                    self._forget(part)
                    return None
                self.memory.put(part, part.n_bytes)
            data.append(part.data)
        return data

    def touch(self, path: list[Node], state: Part | None = None) -> None:
        """Marks a prefix as used. Its first segment is the one used last, so that a prefix goes from its end."""
        for part in [state, *(node.pages for node in reversed(path))]:
            if part is None:
                continue
            self.memory.touch(part)
            if part.file is not None:
                self.disk.touch(part.file)
                with suppress(OSError):
                    os.utime(part.file)  # the order after a restart

    def evict(self) -> None:
        """Back to the budget of memory; what is in a file stays there."""
        for part in self.memory.too_many():
            self.n_evicted += 1
            if part.file is None:
                self._forget(part)
            else:
                self.memory.remove(part)
                part.data = None

    # --- the tree

    def _attach(self, parent: Node, segment: Segment) -> Node:
        node = parent.children[segment.key] = Node(parent, segment)
        self.n_nodes += 1
        return node

    def _kept(self, part: Part, data: Bytes) -> Part:
        part.data = data
        self.memory.put(part, part.n_bytes)
        if self._is_writing:
            self._unwritten[part] = None
            self.changed.notify()
        return part

    def _forget(self, part: Part) -> None:
        """With pages goes all that goes on from them."""
        node, gone = part.node, [part]
        if part is node.state:
            node.state = None
        elif node.parent is not None:
            del node.parent.children[node.segment.key]
            nodes = list(node.subtree())
            gone = [part for node in nodes for part in node.parts]
            self.n_nodes -= len(nodes)
        for part in gone:
            part.is_forgotten = True
            part.data = None  # now: nodes and parts are cycles, which Python collects whenever it likes
            self.memory.remove(part)
            self._unwritten.pop(part, None)
            if part.file is not None:
                self._filed.pop(part.file)
                self._unlink(part.file)

    # --- files

    def _open(self, folder: Path, fingerprint: str) -> Files | None:
        try:
            files = Files(folder, fingerprint)
        except OSError as error:
            log.warning("prefixes are not kept over a restart: %s", error)
            return None
        for path, n_bytes in files.all():
            self.disk.put(path, n_bytes)
        for stored in files.read_all():
            self._adopt(stored)
        self._evict_files()
        return files

    def _adopt(self, stored: Stored) -> None:
        """Puts a file where it belongs; its data is read when it is needed. Pages come before what goes on from them,
        so what finds no place there never will."""
        node = self._place(stored.ids[: stored.start], stored.ends)
        if node is None:
            return self._unlink(stored.path)
        if stored.kind == "pages":
            ends = tuple(end for end in stored.ends if end > stored.start)
            ids = stored.ids[stored.start :].tobytes()
            node = self._attach(node, Segment(stored.start, len(stored.ids), ends, ids, keeps_state=True))
        part = Part(node, stored.kind, stored.n_bytes)
        if stored.kind == "pages":
            node.pages = part
        else:
            node.state = part
        part.file = stored.path
        self._filed[stored.path] = part

    def _place(self, ids: np.ndarray[tuple[int], np.dtype[np.int32]], ends: tuple[int, ...]) -> Node | None:
        """The node whose prefix is ids, computed in appends with these ends."""
        node = self.root
        while node.end < len(ids):
            at = node.end
            behind = (
                child
                for child in node.children.values()
                if child.segment.ids == ids[at : child.end].tobytes()
                and child.segment.ends == tuple(end for end in ends if at < end <= child.end)
            )
            found = next(behind, None)
            if found is None:
                return None
            node = found
        return node

    def _read(self, part: Part) -> Bytes:
        if self._files is None or part.file is None:
            raise FormatError("a part that is neither in memory nor in a file")
        return self._files.load(part.file, part.kind, part.n_bytes)

    def _write_behind(self) -> None:
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self._unwritten or self._is_closed)
                if not self._unwritten:
                    return
                part = next(iter(self._unwritten))
                del self._unwritten[part]
                data = part.data
            if data is not None and self._files is not None and not self._write(self._files, part, data):
                return

    def _write(self, files: Files, part: Part, data: Bytes) -> bool:
        path = part.node.path()
        ids = np.frombuffer(b"".join(node.segment.ids for node in path), np.int32)
        ends = tuple(end for node in path for end in node.segment.ends)
        start = part.node.segment.start if part.kind == "pages" else part.node.end
        try:
            file, n_bytes = files.write(part.kind, start, ids, ends, data)
        except OSError as error:
            log.warning("prefixes are no longer written to files: %s", error)
            with self.changed:
                self._is_writing = False
                self._unwritten.clear()
            return False
        with self.changed:
            if part.is_forgotten:
                file.unlink(missing_ok=True)
                return True
            part.file = file
            self._filed[file] = part
            self.disk.put(file, n_bytes)
            self.touch(path)
            self._evict_files()
        return True

    def _evict_files(self) -> None:
        for path in self.disk.too_many():
            part = self._filed.pop(path, None)
            self._unlink(path)
            if part is not None:
                part.file = None
                if part.data is None:
                    self._forget(part)

    def _unlink(self, path: Path) -> None:
        self.disk.remove(path)
        path.unlink(missing_ok=True)
