// Attention with heads of 512 whose values are parts of the keys (KvLayer::key_tail): as attention_wide.cpp.
// Needs: nvidia, bf16
#include "dialect.h"

#include "gpu/attention/instances.h"
#include "gpu/attention/packed_ring.h"
#include "gpu/attention/wide.h"

namespace lb::gpu {

#define STEP(kernel, Stored, kDim) \
  LB_KERNEL(kernel, AttentionSplits, 128, 2) { attention_wide<Stored, kDim, 1, kWideTail>(p, 0, block_id()); }
#define ROWS(kernel, Stored, kDim)                                                                                \
  LB_KERNEL(kernel, AttentionSplits, 128, 2) {                                                                    \
    attention_wide<Stored, kDim, 2, kWideTail>(p, (n_blocks() - 1 - block_id()) * wide_queries(2), block_id_z()); \
  }
#define X(kernel, Type, Stored, kDim) STEP(kernel, Stored, kDim)
LB_ATTENTION_WIDE_TAIL_16(X)
#undef X
#define X(kernel, kDim) STEP(kernel, Packed, kDim)
LB_ATTENTION_WIDE_TAIL_16_PACKED(X)
#undef X
#define X(kernel, Type, Stored, kDim) ROWS(kernel, Stored, kDim)
LB_ATTENTION_WIDE_TAIL_32(X)
#undef X
#define X(kernel, kDim) ROWS(kernel, Packed, kDim)
LB_ATTENTION_WIDE_TAIL_32_PACKED(X)
#undef X
#undef ROWS
#undef STEP

}  // namespace lb::gpu
