// GEMV kernels for the weight types with blocks of 32 values, NVFP4 and FP8, with 8-bit and 16-bit x. Body: gemv.h.
#include "dialect.h"

#include "gpu/gemv/formats_32.h"
#include "gpu/gemv/formats_fp.h"
#include "gpu/gemv/gemv.h"
#include "gpu/gemv/instances.h"

namespace lb::gpu {

template <int kBits>
using Q8_0 = Q8_0Format<kBits>;
template <int kBits>
using Q4_0 = Block32Format<DType::kQ4_0, kBits>;
template <int kBits>
using Q4_1 = Block32Format<DType::kQ4_1, kBits>;
template <int kBits>
using Q5_0 = Block32Format<DType::kQ5_0, kBits>;
template <int kBits>
using Q5_1 = Block32Format<DType::kQ5_1, kBits>;
template <int kBits>
using IQ4_NL = Block32Format<DType::kIQ4_NL, kBits>;
template <int kBits>
using MXFP4 = Block32Format<DType::kMXFP4, kBits>;
template <int kBits>
using NVFP4 = NVFP4Format<kBits>;
template <int kBits>
using F8_E4M3 = F8_E4M3Format<kBits>;

#define X(kernel, wide_kernel, Type, kXBits, kBatch, kWidePieces, kWideBatch, kWideThreads)                            \
  LB_KERNEL(kernel, Gemv, kGemvThreads, kGemvBlocks<kXBits>) { gemv<Type<kXBits>, 1, kGemvBatch<kXBits, kBatch>>(p); } \
  LB_KERNEL(wide_kernel, Gemv, kWideThreads, 1) { gemv<Type<kXBits>, kWidePieces, kGemvWideBatch<kWideBatch>>(p); }
LB_GEMV_KERNELS_32(X)
#undef X

}  // namespace lb::gpu
