// Attention of more than 16 queries per KV head over F16 or BF16 pages, 16 queries per warp.
#include "dialect.h"

#include "gpu/attention/prefill.h"

namespace lb::gpu {

LB_KERNEL(attention_prefill_16_f16_64_kernel, AttentionSplits, 128, 2) { attention_prefill<f16, 64, 1>(p); }
LB_KERNEL(attention_prefill_16_f16_128_kernel, AttentionSplits, 128, 2) { attention_prefill<f16, 128, 1>(p); }
LB_KERNEL(attention_prefill_16_f16_256_kernel, AttentionSplits, 128, 2) { attention_prefill<f16, 256, 1>(p); }
LB_KERNEL(attention_prefill_16_bf16_64_kernel, AttentionSplits, 128, 2) { attention_prefill<bf16, 64, 1>(p); }
LB_KERNEL(attention_prefill_16_bf16_128_kernel, AttentionSplits, 128, 2) { attention_prefill<bf16, 128, 1>(p); }
LB_KERNEL(attention_prefill_16_bf16_256_kernel, AttentionSplits, 128, 2) { attention_prefill<bf16, 256, 1>(p); }

}  // namespace lb::gpu
