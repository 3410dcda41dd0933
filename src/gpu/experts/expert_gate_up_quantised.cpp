// Gate and up products of experts for quantised weights, with 8-bit and 16-bit x. Body: gate_up.h.
#include "dialect.h"

#include "gpu/experts/gate_up.h"
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

#define X(name, Type, kXBits, ...)                                             \
  LB_KERNEL(expert_gate_up_##name##_kernel, ExpertGateUp, kExpertThreads, 1) { \
    LB_SHARED(float, tile, kExpertTile);                                       \
    expert_gate_up<__VA_ARGS__>(p, tile);                                      \
  }
LB_EXPERT_KERNELS_QUANTISED(X)
#undef X

}  // namespace lb::gpu
