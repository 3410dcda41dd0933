// Gate and up products of experts for many rows, quantised weights with 8-bit x. Body: grouped.h.
#include "dialect.h"

#include "gpu/experts/grouped.h"
#include "gpu/experts/instances.h"
#include "gpu/gemm/table_formats.h"

namespace lb::gpu {

#define X(name, Type, kTileRows)                                                \
  LB_KERNEL(expert_gemm_gate_up_##name##_kernel, ExpertGemm, kGemmThreads, 2) { \
    expert_gemm<ByteProduct<Gemm##Type, kTileRows, 8>, true>(p);                \
  }
LB_EXPERT_GEMMS_BYTES(X)
#undef X

}  // namespace lb::gpu
