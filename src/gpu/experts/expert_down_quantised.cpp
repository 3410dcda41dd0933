// Down products of experts for quantised weights, with 8-bit and 16-bit x. Body: down.h.
#include "dialect.h"

#include "gpu/experts/down.h"
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

// Two blocks per multiprocessor, except where they would spill: with 16-bit x, on sm_70, and with the long pieces of
// NVFP4.
template <DType kType, int kXBits>
inline constexpr int kDownBlocks =
    kXBits == 8 && kHasUniformRegisters && (kType != DType::kNVFP4 || kHoldsEightPieces) ? 2 : 1;

#define X(name, Type, kXBits, ...)                                                                                \
  LB_KERNEL(expert_down_##name##_kernel, ExpertDown, kExpertDownThreads, (kDownBlocks<DType::k##Type, kXBits>)) { \
    expert_down<__VA_ARGS__, kDownChoices<kXBits>>(p);                                                            \
  }
LB_EXPERT_KERNELS_QUANTISED(X)
#undef X

}  // namespace lb::gpu
