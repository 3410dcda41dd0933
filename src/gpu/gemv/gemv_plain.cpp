// The mat-vec kernels of plain weights, and their wide ones for longer rows. Body: linear_vec.h.
#include "dialect.h"

#include "gpu/gemv/formats_plain.h"
#include "gpu/gemv/gemv.h"

namespace lb::gpu {

using F32 = PlainFormat<DType::kF32>;
using F16 = PlainFormat<DType::kF16>;
using BF16 = PlainFormat<DType::kBF16>;

LB_KERNEL(linear_vec_f32_kernel, LinearVec, kVecThreads, 2) { linear_vec<F32, 1, 8>(p); }
LB_KERNEL(linear_vec_f32_wide_kernel, LinearVec, kVecWideThreads, 1) { linear_vec<F32, 2, 4>(p); }
LB_KERNEL(linear_vec_f16_kernel, LinearVec, kVecThreads, 2) { linear_vec<F16, 1, 8>(p); }
LB_KERNEL(linear_vec_f16_wide_kernel, LinearVec, kVecWideThreads, 1) { linear_vec<F16, 2, 4>(p); }
LB_KERNEL(linear_vec_bf16_kernel, LinearVec, kVecThreads, 2) { linear_vec<BF16, 1, 8>(p); }
LB_KERNEL(linear_vec_bf16_wide_kernel, LinearVec, kVecWideThreads, 1) { linear_vec<BF16, 2, 4>(p); }

}  // namespace lb::gpu
