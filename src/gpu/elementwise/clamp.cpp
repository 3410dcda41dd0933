// Clamp: y = min(max(x, lowest), highest), a value per thread. Bound: latency for few rows, else bandwidth, 8 bytes per
// value.
#include "dialect.h"

#include "ops/vision.h"

namespace lb::gpu {

LB_KERNEL(clamp_kernel, Clamp, 256, 1) {
  dependents_may_launch();
  wait_for_previous();
  const long count = long(p.rows) * p.dim, step = long(n_blocks()) * n_threads();
  for (long i = long(block_id()) * n_threads() + thread_id(); i < count; i += step)
    p.y[i] = min(max(p.x[i], p.lowest), p.highest);
}

}  // namespace lb::gpu
