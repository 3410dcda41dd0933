// Products of few rows of x, 8 bits of each value, by type and rows (body: gemm_skinny.h): blocks of 256 values.
// Needs: nvidia, bf16
#include "dialect.h"

#include "gpu/gemm_skinny/formats_256.h"

#include "gpu/gemm_skinny/gemm_skinny.h"

namespace lb::gpu {

LB_KERNEL(gemm_skinny_q4_k_8_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyQ4_K, 8, 2>(p); }
LB_KERNEL(gemm_skinny_q4_k_16_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyQ4_K, 16, 2>(p); }
LB_KERNEL(gemm_skinny_q4_k_24_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyQ4_K, 24, 2>(p); }
LB_KERNEL(gemm_skinny_q4_k_32_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyQ4_K, 32, 2>(p); }
LB_KERNEL(gemm_skinny_q4_k_48_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyQ4_K, 48, 1>(p); }

LB_KERNEL(gemm_skinny_q5_k_8_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyQ5_K, 8, 2>(p); }
LB_KERNEL(gemm_skinny_q5_k_16_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyQ5_K, 16, 2>(p); }
LB_KERNEL(gemm_skinny_q5_k_24_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyQ5_K, 24, 2>(p); }
LB_KERNEL(gemm_skinny_q5_k_32_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyQ5_K, 32, 1>(p); }

LB_KERNEL(gemm_skinny_q6_k_8_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyQ6_K, 8, 2>(p); }
LB_KERNEL(gemm_skinny_q6_k_16_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyQ6_K, 16, 2>(p); }
LB_KERNEL(gemm_skinny_q6_k_24_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyQ6_K, 24, 2>(p); }
LB_KERNEL(gemm_skinny_q6_k_32_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyQ6_K, 32, 1>(p); }

LB_KERNEL(gemm_skinny_q3_k_16_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyQ3_K, 16, 2>(p); }
LB_KERNEL(gemm_skinny_q3_k_24_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyQ3_K, 24, 2>(p); }
LB_KERNEL(gemm_skinny_q3_k_32_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyQ3_K, 32, 2>(p); }

LB_KERNEL(gemm_skinny_q2_k_16_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyQ2_K, 16, 2>(p); }
LB_KERNEL(gemm_skinny_q2_k_24_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyQ2_K, 24, 2>(p); }
LB_KERNEL(gemm_skinny_q2_k_32_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyQ2_K, 32, 2>(p); }

LB_KERNEL(gemm_skinny_iq4_xs_16_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyIQ4_XS, 16, 2>(p); }
LB_KERNEL(gemm_skinny_iq4_xs_24_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyIQ4_XS, 24, 2>(p); }
LB_KERNEL(gemm_skinny_iq4_xs_32_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyIQ4_XS, 32, 2>(p); }

}  // namespace lb::gpu
