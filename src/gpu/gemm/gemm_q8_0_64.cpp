// GEMM kernel for Q8_0 weights and 8-bit x with tiles of 64 rows. Two stages need more than 64 KiB of shared memory;
// chips with less use smaller tiles. Body: gemm.h.
// Needs: 80 KiB of shared memory
#include "dialect.h"

#include "gpu/gemm/gemm.h"
#include "gpu/gemm/instances.h"

namespace lb::gpu {

#define X(kernel, Type, kXBits, kTileRows, kMinBlocks) \
  LB_KERNEL(kernel, Gemm, kGemmThreads, kMinBlocks) { gemm<ByteProduct<Gemm##Type, kTileRows, kXBits>>(p); }
LB_GEMM_Q8_0_64(X)
#undef X

}  // namespace lb::gpu
