// Copies to shared memory that complete on a CountedBarrier (sm_90 and up): cp.async, and bulk copies (TMA), whose
// bytes the barrier counts.
#pragma once

#include "warpgroup.h"

namespace lb::gpu {

// Arrives, and makes the phase wait for `bytes` more bytes of bulk copies.
LB_DEVICE void barrier_expect(CountedBarrier* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
               : "memory");
}

// Arrives once this thread's asynchronous copies so far have completed. The barrier's count must include every such
// thread.
LB_DEVICE void copy_arrive(CountedBarrier* b) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(b)) : "memory");
}

// One thread issues the copy. Both addresses and `bytes` are multiples of 16.
LB_DEVICE void copy_bulk(void* shared, const void* global, int bytes, CountedBarrier* b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(b))
               : "memory");
}
// Same copy for data that is read once: L2 evicts its lines first.
LB_DEVICE void copy_bulk_evict_first(void* shared, const void* global, int bytes, CountedBarrier* b) {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(b)), "l"(policy)
      : "memory");
}

}  // namespace lb::gpu
