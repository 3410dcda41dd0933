// GEMM kernels for Q4_K weights, with 8-bit and 16-bit x. Body: gemm.h.
#include "dialect.h"

#include "gpu/gemm/gemm.h"
#include "gpu/gemm/instances.h"

namespace lb::gpu {

#define X(kernel, Type, kXBits, kTileRows, kMinBlocks) \
  LB_KERNEL(kernel, Gemm, kGemmThreads, kMinBlocks) { gemm<ByteProduct<Gemm##Type, kTileRows, kXBits>>(p); }
LB_GEMM_Q4_K(X)
#undef X

}  // namespace lb::gpu
