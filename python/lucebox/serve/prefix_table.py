"""`PrefixTable`: which replicas computed which prefixes, and which one a prompt goes to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from typing import Generic, TypeVar

__all__ = ["PrefixTable"]

T = TypeVar("T")
MAX_DIGESTS = 200_000
MAX_HOLDERS = 4
"""Replicas that are remembered for a prefix, the newest ones."""


class PrefixTable(Generic[T]):
    """Remembers the newest MAX_DIGESTS prefixes; forgets the least recently used ones."""

    def __init__(self) -> None:
        self._holders: OrderedDict[bytes, tuple[T, ...]] = OrderedDict()

    def add(self, digests: Sequence[bytes], replica: T) -> None:
        """Notes that a replica computes a prompt with these prefixes."""
        for digest in digests:
            others = tuple(one for one in self._holders.pop(digest, ()) if one != replica)
            self._holders[digest] = (replica, *others)[:MAX_HOLDERS]
        while len(self._holders) > MAX_DIGESTS:
            self._holders.popitem(last=False)

    def find(self, digests: Sequence[bytes], alive: Collection[T]) -> list[T]:
        """The replicas that computed the longest known prefix, the newest first; dead ones do not count."""
        for digest in reversed(digests):
            if found := [one for one in self._holders.get(digest, ()) if one in alive]:
                return found
        return []

    def holder(self, digests: Sequence[bytes], queues: Mapping[T, int], slots: int) -> T | None:
        """The least busy replica that computed the longest known prefix. None: no replica has one, or that replica has
        `slots` requests more than the least busy one: then a whole round of answers would precede the prompt there.
        queues: the requests at each replica that is alive; slots: answers that a replica computes together."""
        found = self.find(digests, queues.keys())
        best = min(found, key=queues.__getitem__, default=None)
        return best if best is not None and queues[best] - min(queues.values()) < slots else None
