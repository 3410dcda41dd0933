"""The prefix cache: prompts reuse computed prefixes, with bit-identical results (docs/prefix_cache.md)."""

from lucebox.generation.prefix_cache.cache import PrefixCache, Stats
from lucebox.generation.prefix_cache.fingerprint import fingerprint
from lucebox.generation.prefix_cache.listener import CacheListener
from lucebox.generation.prefix_cache.plan import append_ends, around_images, chunks_together, state_bytes, turn_ends
from lucebox.generation.prefix_cache.tree import Node

__all__ = [
    "CacheListener",
    "Node",
    "PrefixCache",
    "Stats",
    "append_ends",
    "around_images",
    "chunks_together",
    "fingerprint",
    "state_bytes",
    "turn_ends",
]
