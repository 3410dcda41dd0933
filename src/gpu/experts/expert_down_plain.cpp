// Down products of experts for plain weights. Body: down.h.
#include "dialect.h"

#include "gpu/experts/down.h"
#include "gpu/experts/instances.h"
#include "gpu/gemv/formats_plain.h"

namespace lb::gpu {

#define X(name, Type, kXBits, ...)                                            \
  LB_KERNEL(expert_down_##name##_kernel, ExpertDown, kExpertDownThreads, 2) { \
    expert_down<__VA_ARGS__, kDownChoices<kXBits>>(p);                        \
  }
LB_EXPERT_KERNELS_PLAIN(X)
#undef X

}  // namespace lb::gpu
