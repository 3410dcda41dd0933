"""A paged cache for tests: shuffled pages, NaN wherever nothing was appended, and the stored values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from lucebox.selftest import ops
from numpy.typing import NDArray
from reference import kv_types
from reference.kv_types import F32, F64, PAGE


def poisoned(n_pages: int, kv_heads: int, kv: str, dim: int) -> NDArray[np.generic]:
    """Pages with all bits set: NaN as a number of any type, and as any scale."""
    bits = kv_types.bits_of(kv)[0]
    if bits < 16:
        return np.full((n_pages, kv_heads, PAGE, kv_types.slot_bytes(kv, dim)), 0xFF, np.uint8)
    ones = np.full((n_pages, kv_heads, PAGE, dim), 2**bits - 1, np.uint32 if bits == 32 else np.uint16)
    return ones.view(np.float32) if bits == 32 else ones


@dataclass
class Cache:
    k_pages: NDArray[np.generic]
    v_pages: NDArray[np.generic]
    k_type: str
    v_type: str
    table: NDArray[np.int32]
    dim: int
    k: F32  # [slots, kv_heads, dim + key_tail] as appended
    v: F32
    key_tail: int = 0  # > 0: values are parts of the keys, and v_pages is empty

    @property
    def sizes(self) -> dict[str, int]:
        """Fields of ops that the shapes of pages do not give."""
        return {"head_dim": self.dim, "key_tail": self.key_tail} if self.key_tail else {}

    @property
    def pages(self) -> tuple[object, ...]:
        return self.k_pages, None if self.key_tail else self.v_pages, self.k_type, self.v_type, self.table

    def row(self, pages: NDArray[np.generic], slot: int) -> NDArray[np.generic]:
        return pages[self.table[slot // PAGE], :, slot % PAGE]

    def _slots(self, pages: NDArray[np.generic], kv: str, *, half_levels: bool = False) -> F64:
        dim = self.dim + self.key_tail
        values = kv_types.stored_values(pages, kv, dim, half_levels=half_levels)[self.table]  # [pages, heads, 64, dim]
        return values.swapaxes(1, 2).reshape(-1, values.shape[1], dim)[: len(self.k)]

    def _values(self, *, half_levels: bool = False) -> F64:
        pages = self.k_pages if self.key_tail else self.v_pages
        return self._slots(pages, self.v_type, half_levels=half_levels)[..., : self.dim]

    @property
    def keys(self) -> F64:
        """[slots, kv_heads, dim] as stored: rotated if the type is a rotated type."""
        return self._slots(self.k_pages, self.k_type)

    @property
    def values(self) -> F64:
        """[slots, kv_heads, dim] as stored, rotated back."""
        stored = self._values()
        return kv_types.unrotate(stored) if kv_types.is_rotated(self.v_type) else stored

    @property
    def device_slots(self) -> tuple[F64, F64]:
        """[slots, kv_heads, dim] keys and values as GPU kernels decode them, both still rotated if their type is."""
        return (
            self._slots(self.k_pages, self.k_type, half_levels=True),
            self._values(half_levels=True),
        )

    def queries(self, q: F32) -> F32:
        """q as attention takes it: rotated if the keys are."""
        return kv_types.rotate(q).astype(np.float32) if kv_types.is_rotated(self.k_type) else q


def filled(
    slots: int, kv_heads: int, dim: int, k_type: str, v_type: str, rng: np.random.Generator, capacity: int = 0,
    isa: str = "auto", key_tail: int = 0,
) -> Cache:  # fmt: skip
    """A cache of at least `capacity` tokens with `slots` random rows, appended by the CPU in two appends."""
    n_pages = max(slots, capacity) // PAGE + 2
    k, v = rng.normal(size=(2, slots, kv_heads, dim + key_tail)).astype(np.float32)
    table = rng.permutation(n_pages).astype(np.int32)
    pages = (poisoned(n_pages, kv_heads, kv, dim + key_tail) for kv in (k_type, v_type))
    cache = Cache(*pages, k_type, v_type, table, dim, k, v, key_tail)
    half = slots // 2
    for rows in (slice(0, half), slice(half, slots)):
        if rows.stop > rows.start:
            values = None if key_tail else v[rows]
            got = ops.kv_append(k[rows], values, *cache.pages, rows.start, isa=isa, **cache.sizes)
            cache.k_pages, cache.v_pages = got[0], cache.v_pages if key_tail else got[1]
    return cache
