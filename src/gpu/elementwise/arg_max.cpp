// The lowest index of the largest value: a maximum over keys that order by value first and lower index second.
//   arg_max_kernel       a block a row
//   arg_max_grid_kernel  few long rows: all blocks share each row, as in softmax.cpp. Cooperative.
// Bound: bandwidth, 4 bytes a value.
#include "dialect.h"

#include "ops/arg_max.h"
#include "ops/grid_work.h"

namespace lb::gpu {

// Larger for a larger value, then for a lower index; a NaN is below everything, the two zeros are equal.
LB_DEVICE uint64_t key_of(float x, int i) {
  const uint32_t bits = x == 0 ? 0 : quant::bits_of(x);
  const uint32_t ordered = x != x ? 0 : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t(ordered) << 32 | ~uint32_t(i);
}
LB_DEVICE int index_of(uint64_t key) { return int(~uint32_t(key)); }

LB_DEVICE uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

LB_DEVICE uint64_t warp_largest(uint64_t key) {
  LB_UNROLL
  for (int mask = 16; mask > 0; mask /= 2) key = larger(key, shuffle_xor(key, mask));
  return key;
}

// scratch: 32 keys in shared memory; free again on return. Every thread gets the result.
LB_DEVICE uint64_t block_largest(uint64_t key, uint64_t* scratch) {
  key = warp_largest(key);
  if (lane() == 0) scratch[warp()] = key;
  block_barrier();
  key = warp_largest(lane() < n_warps() ? scratch[lane()] : 0);
  block_barrier();
  return key;
}

LB_DEVICE uint64_t largest_of(const float* x, int begin, int end, uint64_t* scratch) {
  uint64_t best = 0;
  for (int i = begin + thread_id(); i < end; i += n_threads()) best = larger(best, key_of(x[i], i));
  return block_largest(best, scratch);
}

LB_KERNEL(arg_max_kernel, ArgMax, 1024, 1) {
  LB_SHARED(uint64_t, scratch, 32);
  dependents_may_launch();
  wait_for_previous();
  const uint64_t best = largest_of(p.x + long(block_id()) * p.dim, 0, p.dim, scratch);
  if (thread_id() == 0) p.y[block_id()] = index_of(best);
}

LB_KERNEL(arg_max_grid_kernel, OnGrid<ArgMax>, 512, 1) {
  LB_SHARED(uint64_t, scratch, 32);
  wait_for_previous();
  const ArgMax& op = p.op;
  uint64_t* partials = static_cast<uint64_t*>(p.work.partials);  // [rows, blocks]
  const int begin = int(long(op.dim) * block_id() / n_blocks());
  const int end = int(long(op.dim) * (block_id() + 1) / n_blocks());
  for (int row = 0; row < op.rows; ++row) {
    const uint64_t best = largest_of(op.x + long(row) * op.dim, begin, end, scratch);
    if (thread_id() == 0) partials[long(row) * n_blocks() + block_id()] = best;
  }
  grid_barrier(p.work.barrier);
  for (int row = block_id(); row < op.rows; row += n_blocks()) {
    uint64_t best = 0;
    for (int i = thread_id(); i < n_blocks(); i += n_threads())
      best = larger(best, partials[long(row) * n_blocks() + i]);
    best = block_largest(best, scratch);
    if (thread_id() == 0) op.y[row] = index_of(best);
  }
}

}  // namespace lb::gpu
