// Gate and up products of experts for plain weights. Body: gate_up.h.
#include "dialect.h"

#include "gpu/experts/gate_up.h"
#include "gpu/experts/instances.h"
#include "gpu/gemv/formats_plain.h"

namespace lb::gpu {

#define X(name, Type, kXBits, ...)                                             \
  LB_KERNEL(expert_gate_up_##name##_kernel, ExpertGateUp, kExpertThreads, 1) { \
    LB_SHARED(float, tile, kExpertTile);                                       \
    expert_gate_up<__VA_ARGS__>(p, tile);                                      \
  }
LB_EXPERT_KERNELS_PLAIN(X)
#undef X

}  // namespace lb::gpu
