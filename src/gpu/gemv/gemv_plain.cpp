// The mat-vec kernels of plain weights, and their wide ones for longer rows. Body: gemv.h.
#include "dialect.h"

#include "gpu/gemv/formats_plain.h"
#include "gpu/gemv/gemv.h"

namespace lb::gpu {

using F32 = PlainFormat<DType::kF32>;
using F16 = PlainFormat<DType::kF16>;
using BF16 = PlainFormat<DType::kBF16>;

LB_KERNEL(gemv_f32_kernel, Gemv, kGemvThreads, 2) { gemv<F32, 1, 8>(p); }
LB_KERNEL(gemv_f32_wide_kernel, Gemv, kGemvWideThreads, 1) { gemv<F32, 2, 4>(p); }
LB_KERNEL(gemv_f16_kernel, Gemv, kGemvThreads, 2) { gemv<F16, 1, 8>(p); }
LB_KERNEL(gemv_f16_wide_kernel, Gemv, kGemvWideThreads, 1) { gemv<F16, 2, 4>(p); }
LB_KERNEL(gemv_bf16_kernel, Gemv, kGemvThreads, 2) { gemv<BF16, 1, 8>(p); }
LB_KERNEL(gemv_bf16_wide_kernel, Gemv, kGemvWideThreads, 1) { gemv<BF16, 2, 4>(p); }

}  // namespace lb::gpu
