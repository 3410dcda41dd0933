// GEMV kernels for the weight types with superblocks of 256 values, with 8-bit and 16-bit x. Body: gemv.h.
#include "dialect.h"

#include "gpu/gemv/formats_16.h"
#include "gpu/gemv/formats_32.h"
#include "gpu/gemv/gemv.h"
#include "gpu/gemv/instances.h"

namespace lb::gpu {

template <int kBits>
using Q2_K = Q2_KFormat<kBits>;
template <int kBits>
using Q3_K = Q3_KFormat<kBits>;
template <int kBits>
using Q4_K = Block32Format<DType::kQ4_K, kBits>;
template <int kBits>
using Q5_K = Block32Format<DType::kQ5_K, kBits>;
template <int kBits>
using Q6_K = Q6_KFormat<kBits>;
template <int kBits>
using IQ4_XS = Block32Format<DType::kIQ4_XS, kBits>;

#define X(kernel, wide_kernel, Type, kXBits, kBatch, kWidePieces, kWideBatch, kWideThreads)                            \
  LB_KERNEL(kernel, Gemv, kGemvThreads, kGemvBlocks<kXBits>) { gemv<Type<kXBits>, 1, kGemvBatch<kXBits, kBatch>>(p); } \
  LB_KERNEL(wide_kernel, Gemv, kWideThreads, 1) { gemv<Type<kXBits>, kWidePieces, kGemvWideBatch<kWideBatch>>(p); }
LB_GEMV_KERNELS_256(X)
#undef X

}  // namespace lb::gpu
