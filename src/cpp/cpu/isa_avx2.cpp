// The vector bodies compiled for AVX2, FMA and F16C.
#include "cpu/body_attention.h"
#include "cpu/body_block_conv.h"
#include "cpu/body_delta_net.h"
#include "cpu/body_norm.h"
#include "cpu/body_rope.h"
#include "cpu/body_swiglu.h"
#include "cpu/body_top_tokens.h"
#include "cpu/linear_body.h"

namespace lb::cpu {

extern const Kernels kAvx2Kernels;
constexpr Kernels kAvx2Kernels = {
#include "cpu/kernel_table.inc"
};

}  // namespace lb::cpu
