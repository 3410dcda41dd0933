// mma.m8n8k4, the matrix instruction of sm_70. Layouts: gpu/quad_matrix.h.
#pragma once

#include <stdint.h>

namespace lb::gpu {

#define LB_QUADS(layout_b)                                                                             \
  asm("mma.sync.aligned.m8n8k4.row." layout_b                                                          \
      ".f32.f16.f16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, "                      \
      "{%0, %1, %2, %3, %4, %5, %6, %7};"                                                              \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]) \
      : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]))

LB_DEVICE void multiply_quads(float* c, const uint32_t* a, const uint32_t* b, bool is_transposed) {
  if (is_transposed)
    LB_QUADS("row");
  else
    LB_QUADS("col");
}

#undef LB_QUADS

}  // namespace lb::gpu

#include "gpu/quad_matrix.h"
// byte products use the row of a lane in quad_matrix.h
#include "gpu/quad_bytes.h"
