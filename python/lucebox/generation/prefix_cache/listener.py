"""`CacheListener`: learns which segments of tokens a prefix cache holds."""

from __future__ import annotations

from lucebox.generation.prefix_cache.tree import Node

__all__ = ["CacheListener"]


class CacheListener:
    """Called while the cache is locked, so a method must not block. A node is a segment of whole pages that continues
    its parent's."""

    def stored(self, node: Node) -> None:
        """The cache holds the pages of a node."""

    def removed(self, node: Node) -> None:
        """The cache no longer holds the pages of a node."""

    def cleared(self) -> None:
        """The cache holds nothing."""
