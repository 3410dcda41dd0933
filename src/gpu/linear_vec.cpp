// The mat-vec kernels: one for each weight type and, for quantised ones, each width of x; and for groups of several
// types. Plain weights come in two sizes of thread, by how many pieces of a row one holds. Body: linear_vec.h.
#include "dialect.h"

#include "linear_vec.h"

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

LB_KERNEL(linear_vec_q8_0_int8_kernel, LinearVec, kVecThreads, 2) { linear_vec<Q8_0Format<8>, 1, 8>(p); }
LB_KERNEL(linear_vec_q8_0_int8_wide_kernel, LinearVec, kVecWideQuantThreads, 1) { linear_vec<Q8_0Format<8>, 2, 4>(p); }
LB_KERNEL(linear_vec_q8_0_int16_kernel, LinearVec, kVecThreads, 2) { linear_vec<Q8_0Format<16>, 1, 8>(p); }
LB_KERNEL(linear_vec_q8_0_int16_wide_kernel, LinearVec, kVecWideQuantThreads, 1) {
  linear_vec<Q8_0Format<16>, 2, 4>(p);
}

LB_KERNEL(linear_vec_q4_0_int8_kernel, LinearVec, kVecThreads, 2) { linear_vec<Q4_0Format<8>, 1, 8>(p); }
LB_KERNEL(linear_vec_q4_0_int8_wide_kernel, LinearVec, kVecWideQuantThreads, 1) { linear_vec<Q4_0Format<8>, 1, 8>(p); }
LB_KERNEL(linear_vec_q4_0_int16_kernel, LinearVec, kVecThreads, 2) { linear_vec<Q4_0Format<16>, 1, 8>(p); }
LB_KERNEL(linear_vec_q4_0_int16_wide_kernel, LinearVec, kVecWideQuantThreads, 1) {
  linear_vec<Q4_0Format<16>, 1, 8>(p);
}

LB_KERNEL(linear_vec_q4_k_int8_kernel, LinearVec, kVecThreads, 2) { linear_vec<Q4_KFormat<8>, 1, 8>(p); }
LB_KERNEL(linear_vec_q4_k_int8_wide_kernel, LinearVec, kVecWideQuantThreads, 1) { linear_vec<Q4_KFormat<8>, 1, 4>(p); }
LB_KERNEL(linear_vec_q4_k_int16_kernel, LinearVec, kVecThreads, 2) { linear_vec<Q4_KFormat<16>, 1, 8>(p); }
LB_KERNEL(linear_vec_q4_k_int16_wide_kernel, LinearVec, kVecWideQuantThreads, 1) {
  linear_vec<Q4_KFormat<16>, 1, 4>(p);
}

LB_KERNEL(linear_vec_q6_k_int8_kernel, LinearVec, kVecThreads, 2) { linear_vec<Q6_KFormat<8>, 1, 4>(p); }
LB_KERNEL(linear_vec_q6_k_int8_wide_kernel, LinearVec, kVecWideQuantThreads, 1) { linear_vec<Q6_KFormat<8>, 1, 2>(p); }
LB_KERNEL(linear_vec_q6_k_int16_kernel, LinearVec, kVecThreads, 2) { linear_vec<Q6_KFormat<16>, 1, 4>(p); }
LB_KERNEL(linear_vec_q6_k_int16_wide_kernel, LinearVec, kVecWideQuantThreads, 1) {
  linear_vec<Q6_KFormat<16>, 1, 4>(p);
}

}  // namespace lb::gpu
