// attention_fp32 of the rows of a tree, each as a step after its parent. The z coordinate counts splits, then rows.
// Needs: nvidia, bf16
#include "dialect.h"

#include "gpu/attention/fp32.h"

namespace lb::gpu {

LB_KERNEL(attention_fp32_kernel_rows, AttentionSplits, kAttentionThreads, 1) {
  LB_SHARED(int32_t, path, kMaxTree);
  const int row = block_id_z() / p.n_splits;
  const TreeRow slots(p.op, row, &path[0]);
  attention_fp32(params_of_row(p, row), block_id_z() % p.n_splits, &slots);
}

}  // namespace lb::gpu
