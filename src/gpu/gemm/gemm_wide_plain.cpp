// Products of more rows than a speculation has, weights of 16 bits: tiles of 128 rows. Body: gemm.h. Two stages
// of them need 80 KiB of shared memory a block; chips that have less take tiles of fewer rows.
// Needs: no wgmma, 80 KiB of shared memory
#include "dialect.h"

#include "gpu/gemm/gemm.h"

namespace lb::gpu {

LB_KERNEL(gemm_wide_f16_kernel, Gemm, 256, 1) {
  gemm<HalfProduct<PlainHalves<f16, DType::kF16, f16>, kWideRows, 1>>(p);
}
LB_KERNEL(gemm_wide_bf16_kernel, Gemm, 256, 1) {
  gemm<HalfProduct<PlainHalves<bf16, DType::kBF16, Wide>, kWideRows, 1>>(p);
}

}  // namespace lb::gpu
