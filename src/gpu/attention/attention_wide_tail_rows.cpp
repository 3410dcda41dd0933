// attention_wide_tail of the rows of a tree, each as a step after its parent; the z coordinate is the row.
// Needs: nvidia, bf16
#include "dialect.h"

#include "gpu/attention/instances.h"
#include "gpu/attention/packed_ring.h"
#include "gpu/attention/wide.h"

namespace lb::gpu {

#define ROWS(kernel, Stored, kDim)                                                                     \
  LB_KERNEL(kernel##_rows, AttentionSplits, 128, 2) {                                                  \
    LB_SHARED(int32_t, path, kMaxTree);                                                                \
    const TreeRow slots(p.op, block_id_z(), &path[0]);                                                 \
    attention_wide<Stored, kDim, 1, kWideTail>(params_of_row(p, block_id_z()), 0, block_id(), &slots); \
  }
#define X(kernel, Type, Stored, kDim) ROWS(kernel, Stored, kDim)
LB_ATTENTION_WIDE_TAIL_16(X)
#undef X
#define X(kernel, kDim) ROWS(kernel, Packed, kDim)
LB_ATTENTION_WIDE_TAIL_16_PACKED(X)
#undef X
#undef ROWS

}  // namespace lb::gpu
