// Decode attention over pages of any pair of types except F32: up to 16 queries per KV head.
#include "dialect.h"

#include "gpu/attention/decode.h"
#include "gpu/attention/instances.h"
#include "gpu/attention/packed_ring.h"

namespace lb::gpu {

#define X(kernel, kDim) \
  LB_KERNEL(kernel, AttentionSplits, 128, 2) { attention_decode<Packed, kDim>(p); }
LB_ATTENTION_DECODE_PACKED(X)
#undef X

}  // namespace lb::gpu
