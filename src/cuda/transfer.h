// Copies into shared memory that a barrier there waits for: asynchronous ones, and bulk copies, by their bytes (sm_90
// and up).
#pragma once

#include "warpgroup.h"

namespace lb::gpu {

// Arrives, and lets the phase wait for so many bytes too.
LB_DEVICE void barrier_expect(CountedBarrier* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
               : "memory");
}

// Arrives when this thread's asynchronous copies so far have come; each such thread counts.
LB_DEVICE void copy_arrive(CountedBarrier* b) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(b)) : "memory");
}

// By one thread; both addresses and the bytes are multiples of 16.
LB_DEVICE void copy_bulk(void* shared, const void* global, int bytes, CountedBarrier* b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(b))
               : "memory");
}
// The same of what is read once: it leaves L2 before anything else does.
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
