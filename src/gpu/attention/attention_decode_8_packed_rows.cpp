// attention_decode_8 of the rows of a tree (see attention_decode_rows.cpp).
// Needs: nvidia, bf16
#include "dialect.h"

#include "gpu/attention/decode_8.h"
#include "gpu/attention/instances.h"

namespace lb::gpu {

#define X(kernel, kDim)                                                              \
  LB_KERNEL(kernel##_rows, AttentionSplits, kAttentionThreads, kDim > 128 ? 2 : 4) { \
    LB_SHARED(int32_t, path, kMaxTree);                                              \
    const TreeRow slots(p.op, block_id_z(), &path[0]);                               \
    attention_decode_8<kDim>(params_of_row(p, block_id_z()), &slots);                \
  }
LB_ATTENTION_DECODE_8_PACKED(X)
#undef X

}  // namespace lb::gpu
