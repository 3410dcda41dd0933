// attention_decode for several sequences in one launch. A separate file, because the compiler does not inline a body
// everywhere if two kernels call it.
#include "dialect.h"

#include "gpu/attention/decode.h"
#include "gpu/attention/instances.h"
#include "gpu/batched.h"

namespace lb::gpu {

#define X(kernel, Type, Stored, kDim) \
  LB_KERNEL(kernel##_batched, Batched<AttentionSplits>, 128, 2) { attention_decode<Stored, kDim>(p.of[block_id_z()]); }
LB_ATTENTION_DECODE(X)
#undef X

}  // namespace lb::gpu
