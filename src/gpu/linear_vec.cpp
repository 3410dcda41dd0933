// The mat-vec kernels: one for each weight type and, for block types, each form of the activations; and two for groups
// of several types, where a block works at one of them. The body is linear_vec.h.
#include "dialect.h"

#include "linear_vec.h"

namespace lb::gpu {

// One type for the whole group.
template <class Format>
LB_DEVICE void one_type(const LinearGroup& group) {
  dependents_may_launch();
  linear_vec<Format>(group, vec_share(group, false, block_id(), n_blocks()));
}

LB_DEVICE DType type_of(const LinearGroup& group, int product) {
  DType type = DType::kF32;
  LB_UNROLL
  for (int i = 0; i < kMaxProducts; ++i)
    if (i == product) type = group.products[i].type;
  return type;
}

// One of these types for each block.
template <class... Formats>
LB_DEVICE void several_types(const LinearGroup& group) {
  dependents_may_launch();
  const VecShare share = vec_share(group, true, block_id(), n_blocks());
  const DType type = type_of(group, share.first);
  const auto run = [&](auto format) {
    if (type == decltype(format)::kType) linear_vec<decltype(format)>(group, share);
  };
  (run(Formats{}), ...);
}

using F32 = PlainFormat<DType::kF32>;
using F16 = PlainFormat<DType::kF16>;
using BF16 = PlainFormat<DType::kBF16>;
using Q8_0Int8 = Int8Format<Q8_0Codes>;
using Q4_0Int8 = Int8Format<Q4_0Codes>;
using Q4_KInt8 = Int8Format<Q4_KCodes>;
using Q6_KInt8 = Int8Format<Q6_KCodes>;
using Q8_0F32 = F32Format<Q8_0Codes>;
using Q4_0F32 = F32Format<Q4_0Codes>;
using Q4_KF32 = F32Format<Q4_KCodes>;
using Q6_KF32 = F32Format<Q6_KCodes>;

LB_KERNEL(linear_vec_f32_kernel, LinearGroup, kVecMaxThreads, 2) { one_type<F32>(p); }
LB_KERNEL(linear_vec_f16_kernel, LinearGroup, kVecMaxThreads, 2) { one_type<F16>(p); }
LB_KERNEL(linear_vec_bf16_kernel, LinearGroup, kVecMaxThreads, 2) { one_type<BF16>(p); }

LB_KERNEL(linear_vec_q8_0_int8_kernel, LinearGroup, kVecMaxThreads, 2) { one_type<Q8_0Int8>(p); }
LB_KERNEL(linear_vec_q4_0_int8_kernel, LinearGroup, kVecMaxThreads, 2) { one_type<Q4_0Int8>(p); }
LB_KERNEL(linear_vec_q4_k_int8_kernel, LinearGroup, kVecMaxThreads, 2) { one_type<Q4_KInt8>(p); }
LB_KERNEL(linear_vec_q6_k_int8_kernel, LinearGroup, kVecMaxThreads, 2) { one_type<Q6_KInt8>(p); }
LB_KERNEL(linear_vec_mixed_int8_kernel, LinearGroup, kVecMaxThreads, 2) {
  several_types<Q8_0Int8, Q4_0Int8, Q4_KInt8, Q6_KInt8>(p);
}

LB_KERNEL(linear_vec_q8_0_f32_kernel, LinearGroup, kVecMaxThreads, 2) { one_type<Q8_0F32>(p); }
LB_KERNEL(linear_vec_q4_0_f32_kernel, LinearGroup, kVecMaxThreads, 2) { one_type<Q4_0F32>(p); }
LB_KERNEL(linear_vec_q4_k_f32_kernel, LinearGroup, kVecMaxThreads, 2) { one_type<Q4_KF32>(p); }
LB_KERNEL(linear_vec_q6_k_f32_kernel, LinearGroup, kVecMaxThreads, 2) { one_type<Q6_KF32>(p); }
LB_KERNEL(linear_vec_mixed_f32_kernel, LinearGroup, kVecMaxThreads, 1) {
  several_types<F32, F16, BF16, Q8_0F32, Q4_0F32, Q4_KF32, Q6_KF32>(p);
}

}  // namespace lb::gpu
