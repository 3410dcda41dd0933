// Products of many rows with plain weights, by tiles of rows; x rounded to 16 bits for weights of 16 bits. Body:
// linear_batch.h.
#include "dialect.h"

#include "gpu/gemm/gemm.h"

namespace lb::gpu {

using F16 = PlainHalves<f16, DType::kF16, f16>;
using BF16 = PlainHalves<bf16, DType::kBF16, Wide>;

LB_KERNEL(linear_batch_f16_16_kernel, LinearBatch, 256, 2) { linear_batch<HalfProduct<F16, 16, 1>>(p); }
LB_KERNEL(linear_batch_f16_32_kernel, LinearBatch, 256, 2) { linear_batch<HalfProduct<F16, 32, 1>>(p); }
LB_KERNEL(linear_batch_f16_64_kernel, LinearBatch, 256, 2) { linear_batch<HalfProduct<F16, 64, 1>>(p); }

LB_KERNEL(linear_batch_bf16_16_kernel, LinearBatch, 256, 2) { linear_batch<HalfProduct<BF16, 16, 1>>(p); }
LB_KERNEL(linear_batch_bf16_32_kernel, LinearBatch, 256, 2) { linear_batch<HalfProduct<BF16, 32, 1>>(p); }
LB_KERNEL(linear_batch_bf16_64_kernel, LinearBatch, 256, 2) { linear_batch<HalfProduct<BF16, 64, 1>>(p); }

LB_KERNEL(linear_batch_f32_kernel, LinearBatch, 256, 2) { linear_batch<FloatProduct>(p); }

}  // namespace lb::gpu
