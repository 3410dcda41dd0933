// Expert GEMV kernels for plain weights. Body: expert_gemv.h.
#include "dialect.h"

#include "gpu/experts/expert_gemv.h"
#include "gpu/experts/instances.h"
#include "gpu/gemv/formats_plain.h"

namespace lb::gpu {

#define X(kernel, Type, kXBits, ...) \
  LB_KERNEL(kernel, ExpertGemv, kExpertGemvThreads, 1) { expert_gemv<__VA_ARGS__>(p); }
LB_EXPERT_KERNELS_PLAIN(X)
#undef X

}  // namespace lb::gpu
