// RmsNorm and Rope of q and k, and stores of K and V to the cache, in one launch (prepare.h). One warp per head of a
// row.
// Bound: latency for few rows, else bandwidth: 8 bytes per value of q; of k and v 4 plus the cache type's.
#include "dialect.h"

#include "gpu/attention/prepare.h"
#include "gpu/batched.h"

namespace lb::gpu {

LB_DEVICE void prepare_block(const AttentionPrepare& p) {
  float* staged = dynamic_shared<float>() + warp() * key_dim_of(p.cache);
  attention_prepare(p, block_id() * n_warps() + warp(), staged, [] {
    dependents_may_launch();
    wait_for_previous();
  });
}

// 7: with 64 registers some chips need stack.
LB_KERNEL(attention_prepare_kernel, AttentionPrepare, kPrepareThreads, 7) { prepare_block(p); }
LB_KERNEL(attention_prepare_kernel_batched, Batched<AttentionPrepare>, kPrepareThreads, 7) {
  prepare_block(p.of[block_id_z()]);
}

}  // namespace lb::gpu
