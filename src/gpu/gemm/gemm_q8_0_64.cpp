// Products of 64 rows with Q8_0 weights, 8-bit x. Body: linear_batch.h. Two stages need more than 64 KiB of shared
// memory a block; chips that have less take tiles of fewer rows.
// Needs: 80 KiB of shared memory
#include "dialect.h"

#include "gpu/gemm/gemm.h"

namespace lb::gpu {

LB_KERNEL(linear_batch_q8_0_int8_64_kernel, LinearBatch, 256, 1) { linear_batch<ByteProduct<BatchQ8_0, 64, 8>>(p); }

}  // namespace lb::gpu
