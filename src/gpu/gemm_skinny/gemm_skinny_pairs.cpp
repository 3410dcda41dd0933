// Skinny GEMM kernels that multiply two weight types in one launch: Q6_K and another type, as files of mixed types
// need. Body: gemm_skinny.h.
// Needs: nvidia, bf16
#include "dialect.h"

#include "gpu/gemm_skinny/formats_256.h"
#include "gpu/gemm_skinny/gemm_skinny.h"
#include "gpu/gemm_skinny/instances.h"

namespace lb::gpu {

#define X(kernel, First, Second, kTileRows, kFirstUnits, kSecondUnits)                        \
  LB_KERNEL(kernel, GemmSkinny, kSkinnyThreads, 1) {                                          \
    gemm_skinny_pair<Skinny##First, Skinny##Second, kTileRows, kFirstUnits, kSecondUnits>(p); \
  }
LB_GEMM_SKINNY_PAIRS(X)
#undef X

}  // namespace lb::gpu
