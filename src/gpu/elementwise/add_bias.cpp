// AddBias: y += bias, one value per thread. Bound: latency for few rows, else bandwidth, 8 bytes per value.
#include "dialect.h"

#include "ops/linear.h"

namespace lb::gpu {

LB_KERNEL(add_bias_kernel, AddBias, 256, 1) {
  dependents_may_launch();
  wait_for_previous();
  const long count = long(p.rows) * p.dim, step = long(n_blocks()) * n_threads();
  for (long i = long(block_id()) * n_threads() + thread_id(); i < count; i += step) p.y[i] += p.bias[i % p.dim];
}

}  // namespace lb::gpu
