// Bound: latency for a few rows, else bandwidth, 8 bytes a value of q, 4 and what the cache's types have of K, V.
#include "dialect.h"

#include "gpu/attention/prepare.h"

namespace lb::gpu {

LB_KERNEL(attention_prepare_kernel, AttentionPrepare, kPrepareThreads, 8) {
  float* staged = dynamic_shared<float>() + warp() * p.cache.head_dim;
  attention_prepare(p, block_id() * n_warps() + warp(), staged, [] {
    dependents_may_launch();
    wait_for_previous();
  });
}

}  // namespace lb::gpu
