// Attention in fp32 (fp32.h).
#include "dialect.h"

#include "gpu/attention/fp32.h"

namespace lb::gpu {

LB_KERNEL(attention_fp32_kernel, AttentionSplits, kAttentionThreads, 1) {
  attention_fp32<AllSlots>(p, block_id_z(), nullptr);
}

}  // namespace lb::gpu
