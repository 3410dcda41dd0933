// Kernels whose last warp is a producer warp of helper threads.
#define LB_HELPER_THREADS 32
#include "io.h"
#include "transfer.h"

namespace lb::gpu {

// Sums n stages of 64 floats and reverses the 64 sums after each stage. The producer warp copies the stages to a ring
// of two. in: float [n, 64]; out: float [65], the sums and n_threads(), which excludes the helper threads
LB_KERNEL(helped_kernel, Io, 96, 1) {
  LB_SHARED(CountedBarrier, full, 2);
  LB_SHARED(CountedBarrier, empty, 2);
  LB_SHARED(float, sums, 64);
  auto stages = dynamic_shared<float>();
  if (thread_id() == 0)
    for (int i = 0; i < 2; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], 2);
    }
  fence_async_proxy();
  whole_block_barrier();
  if (thread_id() >= n_threads()) {
    for (int i = 0; i < p.n; ++i) {
      barrier_wait(&empty[i % 2], i / 2 % 2 ^ 1);
      if (lane() > 0) continue;
      barrier_expect(&full[i % 2], 256);
      copy_bulk_evict_first(&stages[i % 2 * 64], static_cast<const float*>(p.in) + i * 64, 256, &full[i % 2]);
    }
    return;
  }
  float sum = 0;
  for (int i = 0; i < p.n; ++i) {
    barrier_wait(&full[i % 2], i / 2 % 2);
    sum += stages[i % 2 * 64 + thread_id()];
    warp_barrier();
    if (lane() == 0) barrier_arrive(&empty[i % 2]);
    sums[thread_id()] = sum;
    block_barrier();
    sum = sums[63 - thread_id()];
    block_barrier();
  }
  static_cast<float*>(p.out)[thread_id()] = sum;
  if (thread_id() == 0) static_cast<float*>(p.out)[64] = float(n_threads());
}

LB_KERNEL(helper_at_barrier_kernel, Io, 96, 1) { block_barrier(); }

}  // namespace lb::gpu
