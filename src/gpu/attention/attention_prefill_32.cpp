// Attention of long chains over F16 or BF16 pages, 32 queries a warp: half the reads of shared memory for each product.
// Not for chips whose lanes have values of eight rows of a sum, nor for heads of 256: the state would not fit
// registers.
// Needs: nvidia
#include "dialect.h"

#include "gpu/attention/prefill.h"

namespace lb::gpu {

LB_KERNEL(attention_prefill_32_f16_64_kernel, AttentionSplits, 128, 2) { attention_prefill<f16, 64, 2>(p); }
LB_KERNEL(attention_prefill_32_f16_128_kernel, AttentionSplits, 128, 2) { attention_prefill<f16, 128, 2>(p); }
LB_KERNEL(attention_prefill_32_bf16_64_kernel, AttentionSplits, 128, 2) { attention_prefill<bf16, 64, 2>(p); }
LB_KERNEL(attention_prefill_32_bf16_128_kernel, AttentionSplits, 128, 2) { attention_prefill<bf16, 128, 2>(p); }

}  // namespace lb::gpu
