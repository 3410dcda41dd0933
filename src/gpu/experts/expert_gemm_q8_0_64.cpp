// Products of experts for many rows, Q8_0 weights with 8-bit x, with tiles of 64 positions. Two stages need more than
// 64 KiB of shared memory; chips with less use tiles of 16. Body: grouped.h.
// Needs: 80 KiB of shared memory
#include "dialect.h"

#include "gpu/experts/grouped.h"
#include "gpu/experts/instances.h"

namespace lb::gpu {

#define X(name, Type, kTileRows)                                                \
  LB_KERNEL(expert_gemm_gate_up_##name##_kernel, ExpertGemm, kGemmThreads, 2) { \
    expert_gemm<ByteProduct<Gemm##Type, kTileRows, 8>, true>(p);                \
  }                                                                             \
  LB_KERNEL(expert_gemm_down_##name##_kernel, ExpertGemm, kGemmThreads, 2) {    \
    expert_gemm<ByteProduct<Gemm##Type, kTileRows, 8>, false>(p);               \
  }
LB_EXPERT_GEMMS_Q8_0_64(X)
#undef X

}  // namespace lb::gpu
