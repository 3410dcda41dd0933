// Bulk copies into shared memory, whose bytes a barrier there waits for (cp.async.bulk, sm_90 and up).
#pragma once

#include "warpgroup.h"

namespace lb::gpu {

// Arrives, and lets the phase wait for so many bytes too.
LB_DEVICE void barrier_expect(CountedBarrier* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
               : "memory");
}

// By one thread; both addresses and the bytes are multiples of 16.
LB_DEVICE void copy_bulk(void* shared, const void* global, int bytes, CountedBarrier* b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(b))
               : "memory");
}

}  // namespace lb::gpu
