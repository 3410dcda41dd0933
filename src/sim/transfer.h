// Copies to shared memory that complete on a CountedBarrier. They execute as late as the barrier allows, which exposes
// premature reads and overwrites.
#pragma once

#include "warpgroup.h"

namespace lb::gpu {

inline void barrier_expect(CountedBarrier* b, int bytes) {
  sim::transfers_of(b).expected += size_t(bytes);
  barrier_arrive(b);
}

inline void copy_arrive(CountedBarrier* b) {
  sim::Transfers& transfers = sim::transfers_of(b);
  for (const sim::Copy& copy : sim::current->copies) {
    transfers.expected += size_t(copy.bytes);
    transfers.copies.push_back(copy);
  }
  sim::current->copies.clear();
  barrier_arrive(b);
}

inline void copy_bulk(void* shared, const void* global, int bytes, CountedBarrier* b) {
  if (bytes <= 0 || bytes % 16 != 0 || uintptr_t(shared) % 16 != 0 || uintptr_t(global) % 16 != 0)
    sim::machine().fail("copy_bulk of %d bytes from %p to %p: expected multiples of 16", bytes, global, shared);
  if (!sim::current->block->shared.contains(shared) || sim::current->block->shared.contains(global))
    sim::machine().fail("copy_bulk copies from global to shared memory, got %p and %p", global, shared);
  sim::transfers_of(b).copies.push_back({shared, global, bytes, sim::kBulk});
}
inline void copy_bulk_evict_first(void* shared, const void* global, int bytes, CountedBarrier* b) {
  copy_bulk(shared, global, bytes, b);
}

}  // namespace lb::gpu
