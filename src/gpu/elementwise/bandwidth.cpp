// Bandwidth test: reads a buffer once, with eight 16-byte loads per thread in flight. The ceiling for bandwidth-bound
// kernels.
#include "dialect.h"

#include "ops/read_memory.h"

namespace lb::gpu {

LB_KERNEL(read_kernel, ReadMemory, 512, 1) {
  LB_SHARED(uint32_t, scratch, 32);
  constexpr int kUnroll = 8;
  const u32x4* x = static_cast<const u32x4*>(p.x);
  const size_t count = p.bytes / 16, step = size_t(n_blocks()) * n_threads();
  size_t at = size_t(block_id()) * n_threads() + thread_id();
  uint32_t sum = 0;
  dependents_may_launch();
  for (; at + (kUnroll - 1) * step < count; at += kUnroll * step) {
    u32x4 v[kUnroll];
    LB_UNROLL
    for (int i = 0; i < kUnroll; ++i) v[i] = load_stream<u32x4>(x + at + i * step);
    LB_UNROLL
    for (int i = 0; i < kUnroll; ++i) sum += v[i][0] + v[i][1] + v[i][2] + v[i][3];
  }
  for (; at < count; at += step) {
    const u32x4 v = load_stream<u32x4>(x + at);
    sum += v[0] + v[1] + v[2] + v[3];
  }
  sum = warp_sum(sum);
  wait_for_previous();  // the previous kernel may write the same sums
  if (lane() == 0) scratch[warp()] = sum;
  block_barrier();
  if (thread_id() == 0) {
    uint32_t total = 0;
    for (int i = 0; i < n_warps(); ++i) total += scratch[i];
    p.sums[block_id()] = total;
  }
}

}  // namespace lb::gpu
