// attention_decode_8 for several sequences in one launch (see attention_decode_batched.cpp).
// Needs: nvidia, bf16
#include "dialect.h"

#include "gpu/attention/decode_8.h"
#include "gpu/attention/instances.h"
#include "gpu/batched.h"

namespace lb::gpu {

#define X(kernel, kDim)                                                                          \
  LB_KERNEL(kernel##_batched, Batched<AttentionSplits>, kAttentionThreads, kDim > 128 ? 3 : 4) { \
    attention_decode_8<kDim>(p.of[block_id_z()]);                                                \
  }
LB_ATTENTION_DECODE_8_PACKED(X)
#undef X

}  // namespace lb::gpu
