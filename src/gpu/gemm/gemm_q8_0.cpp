// Products of many rows with Q8_0 weights: of 8-bit and of 16-bit x by tiles of rows. Body: linear_batch.h.
#include "dialect.h"

#include "gpu/gemm/gemm.h"

namespace lb::gpu {

LB_KERNEL(linear_batch_q8_0_int8_8_kernel, LinearBatch, 256, 2) { linear_batch<ByteProduct<BatchQ8_0, 8, 8>>(p); }
LB_KERNEL(linear_batch_q8_0_int8_16_kernel, LinearBatch, 256, 2) { linear_batch<ByteProduct<BatchQ8_0, 16, 8>>(p); }
LB_KERNEL(linear_batch_q8_0_int8_24_kernel, LinearBatch, 256, 2) { linear_batch<ByteProduct<BatchQ8_0, 24, 8>>(p); }
LB_KERNEL(linear_batch_q8_0_int8_32_kernel, LinearBatch, 256, 2) { linear_batch<ByteProduct<BatchQ8_0, 32, 8>>(p); }
LB_KERNEL(linear_batch_q8_0_int8_48_kernel, LinearBatch, 256, 1) { linear_batch<ByteProduct<BatchQ8_0, 48, 8>>(p); }

LB_KERNEL(linear_batch_q8_0_int16_16_kernel, LinearBatch, 256, 2) { linear_batch<ByteProduct<BatchQ8_0, 16, 16>>(p); }
LB_KERNEL(linear_batch_q8_0_int16_32_kernel, LinearBatch, 256, 1) { linear_batch<ByteProduct<BatchQ8_0, 32, 16>>(p); }

}  // namespace lb::gpu
