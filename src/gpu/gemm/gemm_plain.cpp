// Products of many rows with plain weights, by tiles of rows; x rounded to 16 bits for weights of 16 bits. Body:
// gemm.h.
#include "dialect.h"

#include "gpu/gemm/gemm.h"

namespace lb::gpu {

using F16 = PlainHalves<f16, DType::kF16, f16>;
using BF16 = PlainHalves<bf16, DType::kBF16, Wide>;

LB_KERNEL(gemm_f16_16_kernel, Gemm, 256, 2) { gemm<HalfProduct<F16, 16, 1>>(p); }
LB_KERNEL(gemm_f16_32_kernel, Gemm, 256, 2) { gemm<HalfProduct<F16, 32, 1>>(p); }
LB_KERNEL(gemm_f16_64_kernel, Gemm, 256, 2) { gemm<HalfProduct<F16, 64, 1>>(p); }

LB_KERNEL(gemm_bf16_16_kernel, Gemm, 256, 2) { gemm<HalfProduct<BF16, 16, 1>>(p); }
LB_KERNEL(gemm_bf16_32_kernel, Gemm, 256, 2) { gemm<HalfProduct<BF16, 32, 1>>(p); }
LB_KERNEL(gemm_bf16_64_kernel, Gemm, 256, 2) { gemm<HalfProduct<BF16, 64, 1>>(p); }

LB_KERNEL(gemm_f32_kernel, Gemm, 256, 2) { gemm<FloatProduct>(p); }

}  // namespace lb::gpu
