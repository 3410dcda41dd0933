// attention_sparse_16 with 32 queries per warp, like attention_prefill_32.
// Needs: nvidia, no wgmma
#include "dialect.h"

#include "gpu/attention/instances.h"
#include "gpu/attention/prefill.h"

namespace lb::gpu {

#define X(kernel, Type, Stored, kDim) \
  LB_KERNEL(kernel, AttentionSplits, 128, 2) { attention_prefill<Stored, kDim, 2, SelectedSlots>(p); }
LB_ATTENTION_SPARSE_32(X)
#undef X

}  // namespace lb::gpu
