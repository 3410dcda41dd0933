// Products of many rows with Q6_K weights: of 8-bit and of 16-bit x by tiles of rows. Body: gemm.h.
#include "dialect.h"

#include "gpu/gemm/gemm.h"

namespace lb::gpu {

LB_KERNEL(gemm_q6_k_int8_8_kernel, Gemm, 256, 2) { gemm<ByteProduct<GemmQ6_K, 8, 8>>(p); }
LB_KERNEL(gemm_q6_k_int8_16_kernel, Gemm, 256, 2) { gemm<ByteProduct<GemmQ6_K, 16, 8>>(p); }
LB_KERNEL(gemm_q6_k_int8_24_kernel, Gemm, 256, 2) { gemm<ByteProduct<GemmQ6_K, 24, 8>>(p); }
LB_KERNEL(gemm_q6_k_int8_32_kernel, Gemm, 256, 2) { gemm<ByteProduct<GemmQ6_K, 32, 8>>(p); }
LB_KERNEL(gemm_q6_k_int8_48_kernel, Gemm, 256, 1) { gemm<ByteProduct<GemmQ6_K, 48, 8>>(p); }
LB_KERNEL(gemm_q6_k_int8_64_kernel, Gemm, 256, 1) { gemm<ByteProduct<GemmQ6_K, 64, 8>>(p); }

LB_KERNEL(gemm_q6_k_int16_16_kernel, Gemm, 256, 2) { gemm<ByteProduct<GemmQ6_K, 16, 16>>(p); }
LB_KERNEL(gemm_q6_k_int16_32_kernel, Gemm, 256, 1) { gemm<ByteProduct<GemmQ6_K, 32, 16>>(p); }

}  // namespace lb::gpu
