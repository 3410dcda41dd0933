// Products of few rows of x, 8 bits of each value, by type and rows (body: gemm_skinny.h): blocks of 256 values.
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
