// GEMV kernels for plain weights, with fp32 x. Body: gemv.h.
#include "dialect.h"

#include "gpu/gemv/formats_plain.h"
#include "gpu/gemv/gemv.h"
#include "gpu/gemv/instances.h"

namespace lb::gpu {

using F32 = PlainFormat<DType::kF32>;
using F16 = PlainFormat<DType::kF16>;
using BF16 = PlainFormat<DType::kBF16>;

#define X(kernel, wide_kernel, Type, kXBits, kBatch, kWidePieces, kWideBatch, kWideThreads)                    \
  LB_KERNEL(kernel, Gemv, kGemvThreads, kGemvBlocks<kXBits>) { gemv<Type, 1, kGemvBatch<kXBits, kBatch>>(p); } \
  LB_KERNEL(wide_kernel, Gemv, kWideThreads, 1) { gemv<Type, kWidePieces, kGemvWideBatch<kWideBatch>>(p); }
LB_GEMV_KERNELS_PLAIN(X)
#undef X

LB_KERNEL(gemv_f32_rows_kernel, Gemv, kGemvWideThreads, 1) { gemv_rows<F32, kGemvRowsPieces>(p); }

}  // namespace lb::gpu
