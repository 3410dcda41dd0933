// Products of few rows of x of 16 bits, by type and rows (body: gemm_skinny.h).
// Needs: nvidia, bf16
#include "dialect.h"

#include "gpu/gemm_skinny/formats_plain.h"

#include "gpu/gemm_skinny/gemm_skinny.h"

namespace lb::gpu {

LB_KERNEL(gemm_skinny_bf16_8_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyPlain<DType::kBF16>, 8, 1>(p); }
LB_KERNEL(gemm_skinny_bf16_16_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyPlain<DType::kBF16>, 16, 1>(p); }
LB_KERNEL(gemm_skinny_bf16_24_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyPlain<DType::kBF16>, 24, 1>(p); }
LB_KERNEL(gemm_skinny_bf16_32_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyPlain<DType::kBF16>, 32, 1>(p); }

LB_KERNEL(gemm_skinny_f16_8_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyPlain<DType::kF16>, 8, 1>(p); }
LB_KERNEL(gemm_skinny_f16_16_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyPlain<DType::kF16>, 16, 1>(p); }
LB_KERNEL(gemm_skinny_f16_24_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyPlain<DType::kF16>, 24, 1>(p); }
LB_KERNEL(gemm_skinny_f16_32_kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<SkinnyPlain<DType::kF16>, 32, 1>(p); }

}  // namespace lb::gpu
