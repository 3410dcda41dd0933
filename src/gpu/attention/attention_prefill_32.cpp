// Attention of more than 64 rows over F16 or BF16 pages, 32 queries per warp: half as many shared-memory reads per
// product as attention_prefill_16. The state would not fit the registers for head_dim 256, nor on AMD, where a lane
// holds eight rows of an accumulator fragment.
// Needs: nvidia, no wgmma
#include "dialect.h"

#include "gpu/attention/instances.h"
#include "gpu/attention/prefill.h"

namespace lb::gpu {

#define X(kernel, Type, Stored, kDim) \
  LB_KERNEL(kernel, AttentionSplits, 128, 2) { attention_prefill<Stored, kDim, 2>(p); }
LB_ATTENTION_PREFILL_32(X)
#undef X

}  // namespace lb::gpu
