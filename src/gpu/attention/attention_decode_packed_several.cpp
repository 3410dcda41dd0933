// attention_decode over packed pages for several sequences, as attention_decode_several.cpp.
#include "dialect.h"

#include "gpu/attention/decode.h"
#include "gpu/attention/instances.h"
#include "gpu/attention/packed_ring.h"
#include "gpu/several.h"

namespace lb::gpu {

#define X(kernel, kDim) \
  LB_KERNEL(kernel##_several, Several<AttentionSplits>, 128, 2) { attention_decode<Packed, kDim>(p.of[block_id_z()]); }
LB_ATTENTION_DECODE_PACKED(X)
#undef X

}  // namespace lb::gpu
