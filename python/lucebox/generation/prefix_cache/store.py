"""Storage of the prefix cache: the tree of prefixes, its parts in memory and in files, and LRU eviction.

A writer thread writes files in the background from the bytes in memory, a prefix before its continuations. A part that
is dropped before its turn is not written.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lucebox import _engine
from lucebox.errors import FormatError
from lucebox.generation.prefix_cache.files import Files, PartFile
from lucebox.generation.prefix_cache.listener import CacheListener
from lucebox.generation.prefix_cache.plan import PAGE, Ids, Segment
from lucebox.generation.prefix_cache.tree import Bytes, Lru, Node, Part

__all__ = ["PartStore"]

log = logging.getLogger("lucebox.generation.prefix_cache")


class PartStore:
    """The parts of all cached prefixes. The caller holds the lock `changed` around every call but `close`."""

    def __init__(
        self,
        memory_bytes: int,
        folder: Path | None,
        fingerprint: str,
        disk_bytes: int,
        owners: Sequence[str],
        engine: _engine.Engine | None,
        listener: CacheListener | None,
    ) -> None:
        """engine, listener: as PrefixCache."""
        self._listener = listener or CacheListener()
        self.changed = threading.Condition()
        self._roots: dict[str, Node] = {}
        self._owners = owners
        self._engine = engine
        self.memory: Lru[Part] = Lru(memory_bytes)
        self.disk: Lru[Path] = Lru(disk_bytes)
        self.runs: Lru[Part] = Lru(0)  # pages and windows, evicted by drop_run(); has no budget
        self.n_nodes = self.n_evicted = self.n_damaged = 0
        self._part_of: dict[Path, Part] = {}
        self._unwritten: dict[Part, None] = {}  # an ordered set
        self._is_closed = False
        self._files = None if folder is None else self._open(folder, fingerprint)
        self._is_writing = self._files is not None
        self._writer: threading.Thread | None = None  # created lazily: an unstarted thread would keep this store alive
        if self._is_writing:
            self._writer = threading.Thread(target=self._write_behind, name="lucebox-prefix-cache", daemon=True)
            self._writer.start()

    def close(self) -> None:
        """Writes the pending parts, then drops everything."""
        with self.changed:
            self._is_closed = True
            self.changed.notify()
        if self._writer is not None:
            self._writer.join()
        if self._files is not None:
            self._files.close()
            self._files = None
        with self.changed:
            for part in self.memory.all():
                part.data = None
                self.memory.remove(part)
            for part in self.runs.all():
                part.run = None
                self.runs.remove(part)
            self._roots.clear()
            self._engine = None
            self._listener.cleared()

    @property
    def keeps_runs(self) -> bool:
        """Whether prefixes keep their pages in the engine's KV cache."""
        return self._engine is not None

    def root(self, owner: str) -> Node:
        """The root of an owner's prefixes."""
        return self._roots.setdefault(owner, Node(owner=owner))

    def walk(self, owner: str, segments: Iterable[Segment]) -> list[Node]:
        """The nodes of the longest cached path of an owner's segments. Compares every token."""
        path = [self.root(owner)]
        for segment in segments:
            child = path[-1].children.get(segment.key)
            if child is None:
                break
            path.append(child)
        return path[1:]

    def follow(self, owner: str, ids: Ids, session: _engine.Session) -> list[Node]:
        """The nodes of the longest cached path of these tokens, whatever its append ends. If sessions need states: the
        path to the longest prefix with a state, and on from there."""
        data = ids.tobytes()
        best, best_ends = self.root(owner), (0, 0)
        stack = [(best, 0)]
        while stack:
            node, state_end = stack.pop()
            if node.has_state(session):
                state_end = node.end
            best, best_ends = max((best, best_ends), (node, (state_end, node.end)), key=lambda one: one[1])
            at = node.end * ids.itemsize
            stack += [(child, state_end) for child in node.children.values() if data.startswith(child.segment.ids, at)]
        return best.path()

    def add(self, parent: Node, segment: Segment, session: _engine.Session) -> Node:
        """Stores the session's pages of a segment."""
        node = self._attach(parent, segment)
        first, n = segment.start // PAGE, segment.n_pages
        node.pages = part = Part(node, "pages", n * session.page_bytes)
        if self._engine is not None:
            self._put_run(part, session.share_pages(first, n))
        if self._engine is None or self._is_writing:
            self._put(part, session.read_pages(first, n))
        return node

    def add_state(self, node: Node, session: _engine.Session) -> None:
        """Stores the session's state after its newest token: the recurrent state, and the windows."""
        if session.recurrent_bytes and node.state is None:
            state = session.read_recurrent()
            node.state = self._put(Part(node, "state", state.nbytes), state)
        if not session.window_bytes or node.windows is not None:
            return
        node.windows = part = Part(node, "windows", 0)
        if self._engine is not None and (run := session.share_windows()) is not None:
            part.n_bytes = run.n_bytes
            self._put_run(part, run)
        if self._engine is None or self._is_writing:
            data = session.read_windows()
            part.n_bytes = data.nbytes
            self._put(part, data)

    def drop_run(self) -> bool:
        """Frees the least recently used KV pages that no session holds, of the kind that a session lacked, else of the
        other kind, and moves their bytes to main memory. False: there are none."""
        kind = "windows" if self._engine is not None and self._engine.lacks_window_pages else "pages"
        free = [one for one in self.runs.all() if one.run is not None and not one.run.is_in_use]
        part = min(free, key=lambda one: one.kind != kind, default=None)
        if part is None:
            return False
        if part.data is None:
            assert self._engine is not None and part.run is not None
            part.data = self._engine.read_pages(part.run)
            self.memory.put(part, part.n_bytes)
        part.run = None
        self.runs.remove(part)
        self.evict()
        return True

    def load(self, parts: Iterable[Part]) -> list[Bytes | _engine.PageRun] | None:
        """The page run of each part that is in the KV cache, else its bytes; None if a part could not be read and was
        dropped."""
        data: list[Bytes | _engine.PageRun] = []
        for part in parts:
            if part.run is not None:
                data.append(part.run)
                continue
            if part.data is None:
                try:
                    part.data = self._read(part)
                except (OSError, FormatError) as error:
                    self.drop_damaged([part], error)
                    return None
                self.memory.put(part, part.n_bytes)
            data.append(part.data)
        return data

    def drop_damaged(self, parts: Iterable[Part], reason: object) -> None:
        """Drops parts and their continuations, with a warning."""
        for part in parts:
            if not part.is_dropped:
                log.warning("ignored a part of the prefix cache: %s", reason)
                self.n_damaged += 1
                self._drop(part)

    def touch(self, path: list[Node], state: Iterable[Part] = ()) -> None:
        """Marks a prefix as used, and parts of the state at its end. Its first segment becomes the most recent, so
        eviction starts at the end of a prefix."""
        for part in [*state, *(node.pages for node in reversed(path))]:
            if part is None:
                continue
            self.memory.touch(part)
            self.runs.touch(part)
            if part.file is not None:
                self.disk.touch(part.file)
                with suppress(OSError):
                    os.utime(part.file)  # keeps the LRU order across restarts

    def evict(self) -> None:
        """Evicts parts from memory down to the budget. Parts that also have a file or KV pages stay in the tree."""
        for part in self.memory.over_budget():
            self.n_evicted += 1
            if part.file is None and part.run is None:
                self._drop(part)
            else:
                self.memory.remove(part)
                part.data = None

    # --- the tree

    def _attach(self, parent: Node, segment: Segment) -> Node:
        node = parent.children[segment.key] = Node(parent, segment)
        self.n_nodes += 1
        self._listener.stored(node)
        return node

    def _put_run(self, part: Part, run: _engine.PageRun) -> None:
        part.run = run
        self.runs.put(part, len(run))

    def _put(self, part: Part, data: Bytes) -> Part:
        part.data = data
        self.memory.put(part, part.n_bytes)
        if self._is_writing:
            self._unwritten[part] = None
            self.changed.notify()
        return part

    def _drop(self, part: Part) -> None:
        """Removes a part from the tree, memory and disk. Dropping pages drops the whole subtree, dropping the recurrent
        state or the windows drops both."""
        node, dropped = part.node, [part]
        if part.kind != "pages":
            dropped = node.state_parts
            node.state = node.windows = None
        elif node.parent is not None:
            del node.parent.children[node.segment.key]
            nodes = list(node.subtree())
            dropped = [part for node in nodes for part in node.parts]
            self.n_nodes -= len(nodes)
            for one in nodes:
                self._listener.removed(one)
        for part in dropped:
            part.is_dropped = True
            part.data = part.run = None  # freed now: nodes and parts form cycles, which the GC frees late
            self.memory.remove(part)
            self.runs.remove(part)
            self._unwritten.pop(part, None)
            if part.file is not None:
                self._part_of.pop(part.file)
                self._unlink(part.file)

    # --- files

    def _open(self, folder: Path, fingerprint: str) -> Files | None:
        try:
            files = Files(folder, fingerprint, self._owners)
        except OSError as error:
            log.warning("the prefix cache is not kept across restarts: %s", error)
            return None
        for path, n_bytes in files.all():
            self.disk.put(path, n_bytes)
        for file in files.read_all():
            self._adopt(file)
        self._evict_files()
        return files

    def _adopt(self, file: PartFile) -> None:
        """Adds a file to the tree; its data is read on demand. Files arrive by ascending prefix length, so a file
        without its parent is useless and is deleted."""
        node = self._find(file.owner, file.ids[: file.start], file.ends)
        if node is None:
            return self._unlink(file.path)
        if file.kind == "pages":
            ends = tuple(end for end in file.ends if end > file.start)
            ids = file.ids[file.start :].tobytes()
            node = self._attach(node, Segment(file.start, len(file.ids), ends, ids, keeps_state=True))
        part = Part(node, file.kind, file.n_bytes)
        setattr(node, file.kind, part)
        part.file = file.path
        self._part_of[file.path] = part

    def _find(self, owner: str, ids: NDArray[np.int32], ends: tuple[int, ...]) -> Node | None:
        """The owner's node whose prefix is ids, computed in appends with these ends."""
        node = self.root(owner)
        while node.end < len(ids):
            start = node.end
            matching = (
                child
                for child in node.children.values()
                if child.segment.ids == ids[start : child.end].tobytes()
                and child.segment.ends == tuple(end for end in ends if start < end <= child.end)
            )
            found = next(matching, None)
            if found is None:
                return None
            node = found
        return node

    def _read(self, part: Part) -> Bytes:
        if self._files is None or part.file is None:
            raise FormatError("a part is neither in memory nor in a file")
        return self._files.load(part.file, part.kind, part.n_bytes)

    def _write_behind(self) -> None:
        """The body of the writer thread."""
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
        """Writes a part; False stops the writer."""
        path = part.node.path()
        ids = np.frombuffer(b"".join(node.segment.ids for node in path), np.int32)
        if (ids >= _engine.FIRST_IMAGE_ID).any():
            return True  # only this engine knows the ids of its images
        ends = tuple(end for node in path for end in node.segment.ends)
        start = part.node.segment.start if part.kind == "pages" else part.node.end
        try:
            file, n_bytes = files.write(part.node.owner, part.kind, start, ids, ends, data)
        except OSError as error:
            log.warning("the prefix cache no longer writes files: %s", error)
            with self.changed:
                self._is_writing = False
                self._unwritten.clear()
            return False
        with self.changed:
            if part.is_dropped:
                file.unlink(missing_ok=True)
                return True
            part.file = file
            self._part_of[file] = part
            self.disk.put(file, n_bytes)
            self.touch(path)
            self._evict_files()
        return True

    def _evict_files(self) -> None:
        for path in self.disk.over_budget():
            part = self._part_of.pop(path, None)
            self._unlink(path)
            if part is not None:
                part.file = None
                if part.data is None and part.run is None:
                    self._drop(part)

    def _unlink(self, path: Path) -> None:
        self.disk.remove(path)
        path.unlink(missing_ok=True)
