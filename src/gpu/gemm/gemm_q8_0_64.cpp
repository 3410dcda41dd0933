// GEMM kernel of Q8_0 weights and tiles of 64 rows, for 8-bit x. Two stages need more than 64 KiB of shared memory;
// chips with less use tiles of fewer rows. Body: gemm.h.
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
