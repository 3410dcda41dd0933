"""A paged cache for tests: shuffled pages, NaN wherever nothing was appended, and the stored values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from lucebox.selftest import ops
from numpy.typing import NDArray
from reference import kv_types
from reference.attention import round_to
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
    k: F32  # [slots, kv_heads, dim] as appended; from filled_with_numbers() as stored
    v: F32

    @property
    def pages(self) -> tuple[object, ...]:
        return self.k_pages, self.v_pages, self.k_type, self.v_type, self.table

    def row(self, pages: NDArray[np.generic], slot: int) -> NDArray[np.generic]:
        return pages[self.table[slot // PAGE], :, slot % PAGE]

    def _slots(self, pages: NDArray[np.generic], kv: str, *, half_levels: bool = False) -> F64:
        values = kv_types.stored_values(pages, kv, self.dim, half_levels=half_levels)[self.table]
        # [pages, heads, 64, dim]
        slots = values.swapaxes(1, 2).reshape(-1, values.shape[1], self.dim)
        return slots[: len(self.k)]

    @property
    def keys(self) -> F64:
        """[slots, kv_heads, dim] as stored: rotated if the type is a rotated type."""
        return self._slots(self.k_pages, self.k_type)

    @property
    def values(self) -> F64:
        """[slots, kv_heads, dim] as stored, rotated back."""
        stored = self._slots(self.v_pages, self.v_type)
        return kv_types.unrotate(stored) if kv_types.is_rotated(self.v_type) else stored

    @property
    def device_slots(self) -> tuple[F64, F64]:
        """[slots, kv_heads, dim] keys and values as GPU kernels decode them, both still rotated if their type is."""
        return (
            self._slots(self.k_pages, self.k_type, half_levels=True),
            self._slots(self.v_pages, self.v_type, half_levels=True),
        )

    def queries(self, q: F32) -> F32:
        """q as attention takes it: rotated if the keys are."""
        return kv_types.rotate(q).astype(np.float32) if kv_types.is_rotated(self.k_type) else q


def filled(
    slots: int, kv_heads: int, dim: int, k_type: str, v_type: str, rng: np.random.Generator, capacity: int = 0,
    isa: str = "auto",
) -> Cache:  # fmt: skip
    """A cache of at least `capacity` tokens with `slots` random rows, appended by the CPU in two appends."""
    n_pages = max(slots, capacity) // PAGE + 2
    k, v = rng.normal(size=(2, slots, kv_heads, dim)).astype(np.float32)
    table = rng.permutation(n_pages).astype(np.int32)
    pages = (poisoned(n_pages, kv_heads, kv, dim) for kv in (k_type, v_type))
    cache = Cache(*pages, k_type, v_type, table, dim, k, v)
    half = slots // 2
    for rows in (slice(0, half), slice(half, slots)):
        if rows.stop > rows.start:
            cache.k_pages, cache.v_pages = ops.kv_append(k[rows], v[rows], *cache.pages, rows.start, isa=isa)
    return cache


def filled_with_numbers(
    slots: int, kv_heads: int, dim: int, k_type: str, v_type: str, rng: np.random.Generator, capacity: int = 0,
    isa: str = "auto",
) -> Cache:  # fmt: skip
    """filled() for F32, F16 or BF16, with k and v already rounded to the stored type."""
    cache = filled(slots, kv_heads, dim, k_type, v_type, rng, capacity, isa)
    cache.k, cache.v = round_to(cache.k, k_type), round_to(cache.v, v_type)
    return cache
