// Attention of more than 16 queries per KV head over F16 or BF16 pages, 16 queries per warp.
#include "dialect.h"

#include "gpu/attention/instances.h"
#include "gpu/attention/prefill.h"

namespace lb::gpu {

#define X(kernel, Type, Stored, kDim) \
  LB_KERNEL(kernel, AttentionSplits, 128, 2) { attention_prefill<Stored, kDim, 1>(p); }
LB_ATTENTION_PREFILL_16(X)
#undef X

}  // namespace lb::gpu
