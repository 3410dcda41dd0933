// The vector bodies compiled without instruction set flags, for every machine of the architecture.
#include "cpu/body_attention.h"
#include "cpu/body_block_conv.h"
#include "cpu/body_delta_net.h"
#include "cpu/body_norm.h"
#include "cpu/body_rope.h"
#include "cpu/body_swiglu.h"
#include "cpu/body_top_tokens.h"
#include "cpu/linear_body.h"

namespace lb::cpu {

extern const Kernels kPortableKernels;
constexpr Kernels kPortableKernels = {
#include "cpu/kernel_table.inc"
};

}  // namespace lb::cpu
