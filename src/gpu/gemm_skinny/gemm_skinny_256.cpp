// Skinny GEMM kernels for the weight types with superblocks of 256 values, with 8-bit x. Body: gemm_skinny.h.
// Needs: nvidia, bf16
#include "dialect.h"

#include "gpu/gemm_skinny/formats_256.h"
#include "gpu/gemm_skinny/gemm_skinny.h"
#include "gpu/gemm_skinny/instances.h"

namespace lb::gpu {

#define X(kernel, Type, kTileRows, kUnits) \
  LB_KERNEL(kernel, GemmSkinny, kSkinnyThreads, 1) { gemm_skinny<Skinny##Type, kTileRows, kUnits>(p); }
LB_GEMM_SKINNY_256(X)
#undef X

}  // namespace lb::gpu
