// The vector bodies compiled for AVX-512 F, BW, VL, DQ, VNNI and VBMI.
#include "cpu/body_attention.h"
#include "cpu/body_block_conv.h"
#include "cpu/body_delta_net.h"
#include "cpu/body_norm.h"
#include "cpu/body_rope.h"
#include "cpu/body_swiglu.h"
#include "cpu/body_top_tokens.h"
#include "cpu/linear_body.h"

namespace lb::cpu {

extern const Kernels kAvx512Kernels;
constexpr Kernels kAvx512Kernels = {
#include "cpu/kernel_table.inc"
};

}  // namespace lb::cpu
