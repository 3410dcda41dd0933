"""The prefix tree: a path from the root is a cached prefix, each node one segment.

Nodes are never split, because two prompts that diverge inside a segment share no state there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from lucebox import _engine
from lucebox.generation.prefix_cache.plan import Segment

__all__ = ["Bytes", "Kind", "Lru", "Node", "Part"]

EMPTY = Segment(0, 0, (), b"", keeps_state=False)

Bytes = NDArray[np.uint8]
Kind = Literal["pages", "state", "windows"]
Key = TypeVar("Key")


class Part:
    """KV pages of a segment, or what continues at its end: the recurrent state, or the pages that hold the windows. In
    memory, in a file, or both. The data is immutable."""

    def __init__(self, node: Node, kind: Kind, n_bytes: int) -> None:
        self.node = node
        self.kind = kind
        self.n_bytes = n_bytes
        self.data: Bytes | None = None
        self.run: _engine.PageRun | None = None
        """The same pages in the KV cache, which sessions share without a copy."""
        self.file: Path | None = None
        self.is_dropped = False
        """Whether the part has been removed from the tree."""


class Node:
    """A segment that continues its parent's prefix, with its stored parts. A root has an owner and an empty segment."""

    def __init__(self, parent: Node | None = None, segment: Segment = EMPTY, owner: str = "") -> None:
        self.parent = parent
        self.owner: str = parent.owner if parent else owner
        self.segment = segment
        self.children: dict[tuple[bytes, tuple[int, ...]], Node] = {}
        self.pages: Part | None = None
        self.state: Part | None = None
        self.windows: Part | None = None

    def has_state(self, session: _engine.Session) -> bool:
        """Whether the node has all that a session needs, beside the pages, to continue at its end."""
        has_recurrent = self.state is not None or not session.recurrent_bytes
        return has_recurrent and (self.windows is not None or not session.window_bytes)

    @property
    def end(self) -> int:
        return self.segment.end

    @property
    def parts(self) -> list[Part]:
        return [part for part in (self.state, self.windows, self.pages) if part is not None]

    @property
    def state_parts(self) -> list[Part]:
        """What a session that continues at the node's end needs beside the pages."""
        return [part for part in (self.state, self.windows) if part is not None]

    def path(self) -> list[Node]:
        """The nodes from the root, exclusive, to this node."""
        path: list[Node] = []
        node = self
        while node.parent is not None:
            path.append(node)
            node = node.parent
        return path[::-1]

    def subtree(self) -> Iterator[Node]:
        """This node and all its descendants."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack += node.children.values()


class Lru(Generic[Key]):
    """Keys in LRU order with their sizes, and a budget. The caller evicts."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.n_bytes = 0
        self._sizes: OrderedDict[Key, int] = OrderedDict()

    def put(self, key: Key, n_bytes: int) -> None:
        """Adds a key as the most recently used."""
        self.remove(key)
        self._sizes[key] = n_bytes
        self.n_bytes += n_bytes

    def touch(self, key: Key) -> None:
        if key in self._sizes:
            self._sizes.move_to_end(key)

    def remove(self, key: Key) -> None:
        self.n_bytes -= self._sizes.pop(key, 0)

    def all(self) -> list[Key]:
        return list(self._sizes)

    def over_budget(self) -> Iterator[Key]:
        """Yields the least recently used key while the budget is exceeded; the caller must remove each key."""
        while self.n_bytes > self.budget_bytes:
            yield next(iter(self._sizes))
