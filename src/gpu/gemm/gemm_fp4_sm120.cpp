// The GEMM of prompts with NVFP4 weights and NVFP4 activations. Body: gemm.h, fp4_product.h.
// Needs: mma_bf16, fp4
#include "dialect.h"

#include "gpu/gemm/fp4_product.h"
#include "gpu/gemm/gemm.h"
#include "gpu/gemm/instances.h"

namespace lb::gpu {

#define X(kernel, Type) \
  LB_KERNEL(kernel, Gemm, kGemmThreads, 1) { gemm<Fp4Product>(p); }
LB_GEMM_FP4(X)
#undef X

}  // namespace lb::gpu
