// attention_decode over packed pages for several sequences in one launch (see attention_decode_batched.cpp). NVIDIA
// targets use attention_decode_8 for up to 8 queries per KV head. Few models have more queries; they use one launch per
// sequence.
// Needs: no nvidia
#include "dialect.h"

#include "gpu/attention/decode.h"
#include "gpu/attention/instances.h"
#include "gpu/attention/packed_ring.h"
#include "gpu/batched.h"

namespace lb::gpu {

#define X(kernel, kDim) \
  LB_KERNEL(kernel##_batched, Batched<AttentionSplits>, 128, 2) { attention_decode<Packed, kDim>(p.of[block_id_z()]); }
LB_ATTENTION_DECODE_PACKED(X)
#undef X

}  // namespace lb::gpu
