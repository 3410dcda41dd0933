// attention_merge of one sequence, and of several.
#include "dialect.h"

#include "gpu/attention/merge.h"
#include "gpu/batched.h"

namespace lb::gpu {

LB_KERNEL(attention_merge_kernel, AttentionSplits, kMaxMergeThreads, 1) {
  LB_SHARED(f32x4, o, kMaxMergeThreads);
  LB_SHARED(float, m, kMaxMergeThreads);
  LB_SHARED(float, l, kMaxMergeThreads);
  merge_splits(p, *p.op.n_past, {o, m, l});
}
LB_KERNEL(attention_merge_kernel_batched, Batched<AttentionSplits>, kMaxMergeThreads, 1) {
  LB_SHARED(f32x4, o, kMaxMergeThreads);
  LB_SHARED(float, m, kMaxMergeThreads);
  LB_SHARED(float, l, kMaxMergeThreads);
  const AttentionSplits& own = p.of[block_id_z()];
  merge_splits(own, *own.op.n_past, {o, m, l});
}

}  // namespace lb::gpu
