// Decode attention over F16 or BF16 pages: up to 16 queries per KV head.
#include "dialect.h"

#include "gpu/attention/decode.h"
#include "gpu/attention/instances.h"

namespace lb::gpu {

#define X(kernel, Type, Stored, kDim) \
  LB_KERNEL(kernel, AttentionSplits, 128, 2) { attention_decode<Stored, kDim>(p); }
LB_ATTENTION_DECODE(X)
#undef X

}  // namespace lb::gpu
