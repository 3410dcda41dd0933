// The GEMM of prompts with FP8 weights on Ada, whose sums of fp8 products keep 13 bits. Body: gemm.h, fp8_product.h.
// Needs: fp8, mma_bf16, no fp4
#include "dialect.h"

#include "gpu/gemm/fp8_product.h"
#include "gpu/gemm/gemm.h"
#include "gpu/gemm/instances.h"

namespace lb::gpu {

#define X(kernel, Type) \
  LB_KERNEL(kernel, Gemm, kGemmThreads, 1) { gemm<Fp8Product<13>>(p); }
LB_GEMM_FP8_SM89(X)
#undef X

}  // namespace lb::gpu
