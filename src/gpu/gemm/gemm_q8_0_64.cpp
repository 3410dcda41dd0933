// Products of 64 rows with Q8_0 weights, 8-bit x. Body: gemm.h. Two stages need more than 64 KiB of shared
// memory a block; chips that have less take tiles of fewer rows.
// Needs: 80 KiB of shared memory
#include "dialect.h"

#include "gpu/gemm/gemm.h"

namespace lb::gpu {

LB_KERNEL(gemm_q8_0_int8_64_kernel, Gemm, 256, 1) { gemm<ByteProduct<GemmQ8_0, 64, 8>>(p); }

}  // namespace lb::gpu
