// GEMM kernels for prompts, F16 and BF16 weights: tiles of 128 rows. Two stages need 80 KiB of shared memory; chips
// with less use smaller tiles. Body: gemm.h.
// Needs: no wgmma, 80 KiB of shared memory
#include "dialect.h"

#include "gpu/gemm/gemm.h"
#include "gpu/gemm/instances.h"

namespace lb::gpu {

using F16 = PlainHalves<f16, DType::kF16, f16>;
using BF16 = PlainHalves<bf16, DType::kBF16, Wide>;

#define X(kernel, Type) \
  LB_KERNEL(kernel, Gemm, kGemmThreads, 1) { gemm<HalfProduct<Type, kWideRows, 1>>(p); }
LB_GEMM_WIDE_PLAIN(X)
#undef X

}  // namespace lb::gpu
