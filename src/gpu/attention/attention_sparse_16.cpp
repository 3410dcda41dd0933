// Attention of a long chain to selected key blocks, over F16 pages, 16 queries per warp. If all blocks are selected,
// the bits equal attention_prefill_16 with one split.
// Needs: nvidia, no wgmma
#include "dialect.h"

#include "gpu/attention/instances.h"
#include "gpu/attention/prefill.h"

namespace lb::gpu {

#define X(kernel, Type, Stored, kDim) \
  LB_KERNEL(kernel, AttentionSplits, 128, 2) { attention_prefill<Stored, kDim, 1, SelectedSlots>(p); }
LB_ATTENTION_SPARSE_16(X)
#undef X

}  // namespace lb::gpu
