// attention_decode over packed pages for several sequences, as attention_decode_several.cpp. On NVIDIA
// attention_decode_8 takes up to 8 queries per KV head, and more of them, which few models have, are worth a launch
// each.
// Needs: no nvidia
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
