// Bulk copies into shared memory, whose bytes a barrier there waits for. They happen as late as a barrier lets them, so
// that rows read too early, and rows overwritten too early, show.
#pragma once

#include "warpgroup.h"

namespace lb::gpu {

inline void barrier_expect(CountedBarrier* b, int bytes) {
  sim::transfers_of(b).expected += size_t(bytes);
  barrier_arrive(b);
}

inline void copy_bulk(void* shared, const void* global, int bytes, CountedBarrier* b) {
  if (bytes <= 0 || bytes % 16 != 0 || uintptr_t(shared) % 16 != 0 || uintptr_t(global) % 16 != 0)
    sim::machine().fail("copy_bulk of %d bytes from %p to %p: no multiples of 16", bytes, global, shared);
  if (!sim::current->block->shared.contains(shared) || sim::current->block->shared.contains(global))
    sim::machine().fail("copy_bulk brings global memory to shared memory, got %p and %p", global, shared);
  sim::transfers_of(b).copies.push_back({shared, global, bytes, 0});
}

}  // namespace lb::gpu
