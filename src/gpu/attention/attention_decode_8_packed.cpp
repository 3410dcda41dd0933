// Decode attention of up to 8 queries per KV head, over pages of any two types except F32 (decode_8.h).
// Needs: nvidia, bf16
#include "dialect.h"

#include "gpu/attention/decode_8.h"
#include "gpu/attention/instances.h"

namespace lb::gpu {

#define X(kernel, kDim) \
  LB_KERNEL(kernel, AttentionSplits, kAttentionThreads, kDim > 128 ? 3 : 4) { attention_decode_8<kDim>(p); }
LB_ATTENTION_DECODE_8_PACKED(X)
#undef X

}  // namespace lb::gpu
