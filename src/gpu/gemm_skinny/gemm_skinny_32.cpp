// Products of few rows of x, 8 bits of each value, by type and rows (body: gemm_skinny.h): blocks of 32 values.
// Needs: nvidia, bf16
#include "dialect.h"

#include "gpu/gemm_skinny/formats_32.h"

#include "gpu/gemm_skinny/gemm_skinny.h"

namespace lb::gpu {

LB_KERNEL(gemm_skinny_q8_0_8_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyQ8_0, 8, 2>(p); }
LB_KERNEL(gemm_skinny_q8_0_16_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyQ8_0, 16, 2>(p); }
LB_KERNEL(gemm_skinny_q8_0_24_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyQ8_0, 24, 2>(p); }
LB_KERNEL(gemm_skinny_q8_0_32_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyQ8_0, 32, 2>(p); }

LB_KERNEL(gemm_skinny_q4_0_16_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyNibbles<DType::kQ4_0>, 16, 2>(p); }
LB_KERNEL(gemm_skinny_q4_0_24_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyNibbles<DType::kQ4_0>, 24, 2>(p); }
LB_KERNEL(gemm_skinny_q4_0_32_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyNibbles<DType::kQ4_0>, 32, 2>(p); }

LB_KERNEL(gemm_skinny_q4_1_16_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyNibbles<DType::kQ4_1>, 16, 2>(p); }
LB_KERNEL(gemm_skinny_q4_1_24_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyNibbles<DType::kQ4_1>, 24, 2>(p); }
LB_KERNEL(gemm_skinny_q4_1_32_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyNibbles<DType::kQ4_1>, 32, 2>(p); }

LB_KERNEL(gemm_skinny_q5_0_16_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyNibbles<DType::kQ5_0>, 16, 2>(p); }
LB_KERNEL(gemm_skinny_q5_0_24_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyNibbles<DType::kQ5_0>, 24, 2>(p); }
LB_KERNEL(gemm_skinny_q5_0_32_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyNibbles<DType::kQ5_0>, 32, 2>(p); }

LB_KERNEL(gemm_skinny_q5_1_16_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyNibbles<DType::kQ5_1>, 16, 2>(p); }
LB_KERNEL(gemm_skinny_q5_1_24_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyNibbles<DType::kQ5_1>, 24, 2>(p); }
LB_KERNEL(gemm_skinny_q5_1_32_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyNibbles<DType::kQ5_1>, 32, 2>(p); }

LB_KERNEL(gemm_skinny_iq4_nl_16_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyNibbles<DType::kIQ4_NL>, 16, 2>(p); }
LB_KERNEL(gemm_skinny_iq4_nl_24_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyNibbles<DType::kIQ4_NL>, 24, 2>(p); }
LB_KERNEL(gemm_skinny_iq4_nl_32_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyNibbles<DType::kIQ4_NL>, 32, 2>(p); }

LB_KERNEL(gemm_skinny_mxfp4_16_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyNibbles<DType::kMXFP4>, 16, 2>(p); }
LB_KERNEL(gemm_skinny_mxfp4_24_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyNibbles<DType::kMXFP4>, 24, 2>(p); }
LB_KERNEL(gemm_skinny_mxfp4_32_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyNibbles<DType::kMXFP4>, 32, 2>(p); }

}  // namespace lb::gpu
