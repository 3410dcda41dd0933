// Products of few rows of one x, some of which are Q6_K, as in files of mixed types, by types and rows (body:
// linear_few.h).
// Needs: nvidia, bf16
#include "dialect.h"

#include "gpu/gemm_skinny/formats_256.h"

#include "gpu/gemm_skinny/gemm_skinny.h"

namespace lb::gpu {

LB_KERNEL(linear_few_q4_k_q6_k_8_kernel, LinearFew, kFewThreads, 1) { linear_few_pair<FewQ4_K, FewQ6_K, 8, 2, 2>(p); }
LB_KERNEL(linear_few_q4_k_q6_k_16_kernel, LinearFew, kFewThreads, 1) { linear_few_pair<FewQ4_K, FewQ6_K, 16, 2, 2>(p); }
LB_KERNEL(linear_few_q4_k_q6_k_24_kernel, LinearFew, kFewThreads, 1) { linear_few_pair<FewQ4_K, FewQ6_K, 24, 2, 2>(p); }
LB_KERNEL(linear_few_q4_k_q6_k_32_kernel, LinearFew, kFewThreads, 1) { linear_few_pair<FewQ4_K, FewQ6_K, 32, 2, 1>(p); }
LB_KERNEL(linear_few_q5_k_q6_k_8_kernel, LinearFew, kFewThreads, 1) { linear_few_pair<FewQ5_K, FewQ6_K, 8, 2, 2>(p); }
LB_KERNEL(linear_few_q5_k_q6_k_16_kernel, LinearFew, kFewThreads, 1) { linear_few_pair<FewQ5_K, FewQ6_K, 16, 2, 2>(p); }
LB_KERNEL(linear_few_q5_k_q6_k_24_kernel, LinearFew, kFewThreads, 1) { linear_few_pair<FewQ5_K, FewQ6_K, 24, 2, 2>(p); }
LB_KERNEL(linear_few_q5_k_q6_k_32_kernel, LinearFew, kFewThreads, 1) { linear_few_pair<FewQ5_K, FewQ6_K, 32, 1, 1>(p); }

}  // namespace lb::gpu
