// attention_merge of the rows of a tree, each as a step after its parent.
// Needs: nvidia, bf16
#include "dialect.h"

#include "gpu/attention/merge.h"
#include "gpu/attention/tree_row.h"

namespace lb::gpu {

// A row of a tree per z coordinate.
LB_KERNEL(attention_merge_kernel_rows, AttentionSplits, kMaxMergeThreads, 1) {
  LB_SHARED(f32x4, o, kMaxMergeThreads);
  LB_SHARED(float, m, kMaxMergeThreads);
  LB_SHARED(float, l, kMaxMergeThreads);
  const int row = block_id_z(), depth = count_bits(p.op.tree.ancestors[row]) - 1;
  merge_splits(params_of_row(p, row), *p.op.n_past + depth, {o, m, l});
}

}  // namespace lb::gpu
