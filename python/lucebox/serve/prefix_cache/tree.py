"""The index: a tree whose paths from the root are prefixes, each branch the tokens of one segment. Two prompts that
part within a segment have no state in common there, so that branches never split."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from lucebox.serve.prefix_cache.plan import Segment

__all__ = ["Bytes", "Kind", "LeastRecent", "Node", "Part"]

EMPTY = Segment(0, 0, (), b"", keeps_state=False)

Bytes = NDArray[np.uint8]
Kind = Literal["pages", "state"]
Key = TypeVar("Key")


class Part:
    """KV pages of a segment, or the recurrent state at its end; in memory, in a file, or both. Never changes."""

    def __init__(self, node: Node, kind: Kind, n_bytes: int) -> None:
        self.node = node
        self.kind = kind
        self.n_bytes = n_bytes
        self.data: Bytes | None = None
        self.file: Path | None = None
        self.is_forgotten = False
        """No longer in the tree."""


class Node:
    """A segment behind its parent's prefix, with what is kept of it. The root's is empty."""

    def __init__(self, parent: Node | None = None, segment: Segment = EMPTY) -> None:
        self.parent = parent
        self.segment = segment
        self.children: dict[tuple[bytes, tuple[int, ...]], Node] = {}
        self.pages: Part | None = None
        self.state: Part | None = None

    @property
    def end(self) -> int:
        return self.segment.end

    @property
    def parts(self) -> list[Part]:
        return [part for part in (self.state, self.pages) if part is not None]

    def path(self) -> list[Node]:
        """From the root's child to this node."""
        path: list[Node] = []
        node = self
        while node.parent is not None:
            path.append(node)
            node = node.parent
        return path[::-1]

    def subtree(self) -> Iterator[Node]:
        """This node and all behind it."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children.values()


class LeastRecent(Generic[Key]):
    """Keys in the order in which they were last used, with their bytes."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.n_bytes = 0
        self._sizes: OrderedDict[Key, int] = OrderedDict()

    def put(self, key: Key, n_bytes: int) -> None:
        """As the one used last."""
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

    def too_many(self) -> Iterator[Key]:
        """The one used longest ago, while there are too many bytes; the caller removes it."""
        while self.n_bytes > self.budget_bytes:
            yield next(iter(self._sizes))
