// Attention with heads of 512 over pages of any pair of types except F32: up to 16 queries per KV head (a step), or 32
// queries per block. AMD's shared memory holds no queries, keys and values of 512 together.
// Needs: nvidia, bf16
#include "dialect.h"

#include "gpu/attention/instances.h"
#include "gpu/attention/packed_ring.h"
#include "gpu/attention/wide.h"

namespace lb::gpu {

#define STEP(kernel, Stored, kDim) \
  LB_KERNEL(kernel, AttentionSplits, 128, 2) { attention_wide<Stored, kDim, 1>(p, 0, block_id()); }
#define ROWS(kernel, Stored, kDim)                                                                     \
  LB_KERNEL(kernel, AttentionSplits, 128, 2) {                                                         \
    attention_wide<Stored, kDim, 2>(p, (n_blocks() - 1 - block_id()) * wide_queries(2), block_id_z()); \
  }
#define X(kernel, Type, Stored, kDim) STEP(kernel, Stored, kDim)
LB_ATTENTION_WIDE_16(X)
#undef X
#define X(kernel, kDim) STEP(kernel, Packed, kDim)
LB_ATTENTION_WIDE_16_PACKED(X)
#undef X
#define X(kernel, Type, Stored, kDim) ROWS(kernel, Stored, kDim)
LB_ATTENTION_WIDE_32(X)
#undef X
#define X(kernel, kDim) ROWS(kernel, Packed, kDim)
LB_ATTENTION_WIDE_32_PACKED(X)
#undef X
#undef ROWS
#undef STEP

}  // namespace lb::gpu
