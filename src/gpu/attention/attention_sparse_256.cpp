// attention_sparse_16 for head_dim 256. A separate file, because it would spill on sm_75.
// Needs: nvidia, no wgmma, 80 KiB of shared memory
#include "dialect.h"

#include "gpu/attention/instances.h"
#include "gpu/attention/prefill.h"

namespace lb::gpu {

#define X(kernel, Type, Stored, kDim) \
  LB_KERNEL(kernel, AttentionSplits, 128, 2) { attention_prefill<Stored, kDim, 1, SelectedSlots>(p); }
LB_ATTENTION_SPARSE_256(X)
#undef X

}  // namespace lb::gpu
