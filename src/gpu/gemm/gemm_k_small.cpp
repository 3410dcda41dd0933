// GEMM kernels for Q4_K and Q6_K weights and 8-bit x, with tiles of up to 48 rows. On chips with bulk copies, skinny
// GEMM takes these rows, except from very long rows of weights on few SMs, where tiles of 64 rows do. Body: gemm.h.
// Needs: no tma
#include "dialect.h"

#include "gpu/gemm/gemm.h"
#include "gpu/gemm/instances.h"

namespace lb::gpu {

#define X(kernel, Type, kXBits, kTileRows, kMinBlocks) \
  LB_KERNEL(kernel, Gemm, kGemmThreads, kMinBlocks) { gemm<ByteProduct<Gemm##Type, kTileRows, kXBits>>(p); }
LB_GEMM_K_SMALL(X)
#undef X

}  // namespace lb::gpu
