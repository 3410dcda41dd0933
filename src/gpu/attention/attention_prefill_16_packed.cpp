// Attention of more than 16 queries per KV head over pages of any two types except F32, 16 queries per warp.
#include "dialect.h"

#include "gpu/attention/instances.h"
#include "gpu/attention/packed_ring.h"
#include "gpu/attention/prefill.h"

namespace lb::gpu {

#define X(kernel, kDim) \
  LB_KERNEL(kernel, AttentionSplits, 128, 2) { attention_prefill<Packed, kDim, 1>(p); }
LB_ATTENTION_PREFILL_16_PACKED(X)
#undef X

}  // namespace lb::gpu
