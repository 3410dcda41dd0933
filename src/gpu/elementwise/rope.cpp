// Rope, in place: a' = a cos - b sin, b' = b cos + a sin. One thread per pair.
// Bound: bandwidth, 16 bytes per pair; each head rereads the table, from cache.
#include "dialect.h"

#include "ops/rope.h"

namespace lb::gpu {

LB_KERNEL(rope_kernel, Rope, 256, 1) {
  dependents_may_launch();
  wait_for_previous();
  const long count = long(p.rows) * p.heads * p.n_pairs;
  for (long at = long(block_id()) * n_threads() + thread_id(); at < count; at += long(n_blocks()) * n_threads()) {
    const int pair = int(at % p.n_pairs);
    const long head = at / p.n_pairs;  // flat index across rows
    const long row = head / p.heads;
    const int distance = p.pairs == RopePairs::kHalves ? p.n_pairs : 1;
    float* a = p.x + head * p.dim + (p.pairs == RopePairs::kHalves ? pair : 2 * pair);
    float* b = a + distance;
    const float cos = p.cos[row * p.n_pairs + pair], sin = p.sin[row * p.n_pairs + pair];
    const float first = *a, second = *b;
    *a = first * cos - second * sin;
    *b = second * cos + first * sin;
  }
}

}  // namespace lb::gpu
