// Products of few rows of x of 16 bits, by type and rows (body: linear_few.h).
// Needs: nvidia, bf16
#include "dialect.h"

#include "gpu/gemm_skinny/formats_plain.h"

#include "gpu/gemm_skinny/gemm_skinny.h"

namespace lb::gpu {

LB_KERNEL(linear_few_bf16_8_kernel, LinearFew, kFewThreads, 1) { linear_few<FewPlain<DType::kBF16>, 8, 1>(p); }
LB_KERNEL(linear_few_bf16_16_kernel, LinearFew, kFewThreads, 1) { linear_few<FewPlain<DType::kBF16>, 16, 1>(p); }
LB_KERNEL(linear_few_bf16_24_kernel, LinearFew, kFewThreads, 1) { linear_few<FewPlain<DType::kBF16>, 24, 1>(p); }
LB_KERNEL(linear_few_bf16_32_kernel, LinearFew, kFewThreads, 1) { linear_few<FewPlain<DType::kBF16>, 32, 1>(p); }

LB_KERNEL(linear_few_f16_8_kernel, LinearFew, kFewThreads, 1) { linear_few<FewPlain<DType::kF16>, 8, 1>(p); }
LB_KERNEL(linear_few_f16_16_kernel, LinearFew, kFewThreads, 1) { linear_few<FewPlain<DType::kF16>, 16, 1>(p); }
LB_KERNEL(linear_few_f16_24_kernel, LinearFew, kFewThreads, 1) { linear_few<FewPlain<DType::kF16>, 24, 1>(p); }
LB_KERNEL(linear_few_f16_32_kernel, LinearFew, kFewThreads, 1) { linear_few<FewPlain<DType::kF16>, 32, 1>(p); }

}  // namespace lb::gpu
