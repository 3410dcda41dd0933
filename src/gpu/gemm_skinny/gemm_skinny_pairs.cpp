// Products of few rows of one x, some of which are Q6_K, as in files of mixed types, by types and rows (body:
// gemm_skinny.h).
// Needs: nvidia, bf16
#include "dialect.h"

#include "gpu/gemm_skinny/formats_256.h"

#include "gpu/gemm_skinny/gemm_skinny.h"

namespace lb::gpu {

LB_KERNEL(gemm_skinny_q4_k_q6_k_8_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny_pair<SkinnyQ4_K, SkinnyQ6_K, 8, 2, 2>(p); }
LB_KERNEL(gemm_skinny_q4_k_q6_k_16_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny_pair<SkinnyQ4_K, SkinnyQ6_K, 16, 2, 2>(p); }
LB_KERNEL(gemm_skinny_q4_k_q6_k_24_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny_pair<SkinnyQ4_K, SkinnyQ6_K, 24, 2, 2>(p); }
LB_KERNEL(gemm_skinny_q4_k_q6_k_32_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny_pair<SkinnyQ4_K, SkinnyQ6_K, 32, 2, 1>(p); }
LB_KERNEL(gemm_skinny_q5_k_q6_k_8_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny_pair<SkinnyQ5_K, SkinnyQ6_K, 8, 2, 2>(p); }
LB_KERNEL(gemm_skinny_q5_k_q6_k_16_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny_pair<SkinnyQ5_K, SkinnyQ6_K, 16, 2, 2>(p); }
LB_KERNEL(gemm_skinny_q5_k_q6_k_24_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny_pair<SkinnyQ5_K, SkinnyQ6_K, 24, 2, 2>(p); }
LB_KERNEL(gemm_skinny_q5_k_q6_k_32_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny_pair<SkinnyQ5_K, SkinnyQ6_K, 32, 1, 1>(p); }

}  // namespace lb::gpu
