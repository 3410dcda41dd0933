// SoftCap: x = cap tanh(x / cap), a value per thread. Bound: latency for few rows, else bandwidth, 8 bytes per value.
#include "dialect.h"

#include "gpu/activation.h"
#include "ops/linear.h"

namespace lb::gpu {

LB_KERNEL(soft_cap_kernel, SoftCap, 256, 1) {
  dependents_may_launch();
  wait_for_previous();
  const long count = long(p.rows) * p.dim, step = long(n_blocks()) * n_threads();
  for (long i = long(block_id()) * n_threads() + thread_id(); i < count; i += step)
    p.x[i] = p.cap * (2.0f * sigmoid(2.0f * p.x[i] / p.cap) - 1.0f);
}

}  // namespace lb::gpu
