// Expert GEMV kernels for quantised weights, with 8-bit and 16-bit x. Body: expert_gemv.h.
#include "dialect.h"

#include "gpu/experts/expert_gemv.h"
#include "gpu/experts/instances.h"
#include "gpu/gemv/formats_16.h"
#include "gpu/gemv/formats_32.h"
#include "gpu/gemv/formats_fp.h"

namespace lb::gpu {

template <DType kType>
struct Block32 {
  template <int kBits>
  using Bits = Block32Format<kType, kBits>;
};

#define X(kernel, Type, kXBits, ...) \
  LB_KERNEL(kernel, ExpertGemv, kExpertGemvThreads, 1) { expert_gemv<__VA_ARGS__>(p); }
LB_EXPERT_KERNELS_QUANTISED(X)
#undef X

}  // namespace lb::gpu
