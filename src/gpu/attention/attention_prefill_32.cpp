// Attention of more than 64 rows over F16 or BF16 pages, 32 queries per warp: half the shared-memory reads per product
// of attention_prefill_16. The state would not fit registers for head_dim 256, nor on AMD, where a lane holds eight
// rows of a fragment of sums.
// Needs: nvidia
#include "dialect.h"

#include "gpu/attention/prefill.h"

namespace lb::gpu {

LB_KERNEL(attention_prefill_32_f16_64_kernel, AttentionSplits, 128, 2) { attention_prefill<f16, 64, 2>(p); }
LB_KERNEL(attention_prefill_32_f16_128_kernel, AttentionSplits, 128, 2) { attention_prefill<f16, 128, 2>(p); }
LB_KERNEL(attention_prefill_32_bf16_64_kernel, AttentionSplits, 128, 2) { attention_prefill<bf16, 64, 2>(p); }
LB_KERNEL(attention_prefill_32_bf16_128_kernel, AttentionSplits, 128, 2) { attention_prefill<bf16, 128, 2>(p); }

}  // namespace lb::gpu
