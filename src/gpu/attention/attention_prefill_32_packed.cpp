// Attention of more than 64 rows over pages of any two types except F32, 32 queries per warp.
// Needs: nvidia, no wgmma
#include "dialect.h"

#include "gpu/attention/instances.h"
#include "gpu/attention/packed_ring.h"
#include "gpu/attention/prefill.h"

namespace lb::gpu {

#define X(kernel, kDim) \
  LB_KERNEL(kernel, AttentionSplits, 128, 2) { attention_prefill<Packed, kDim, 2>(p); }
LB_ATTENTION_PREFILL_32_PACKED(X)
#undef X

}  // namespace lb::gpu
