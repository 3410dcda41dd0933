// The products and layouts of sm_70 (gpu/quad_matrix.h) in place of sm_80's, where LUCEBOX_QUADS is defined, so that
// tests run the kernels of sm_70.
#pragma once

#include <stdint.h>

#include <cstring>

namespace lb::gpu {

namespace sim {

// Lane i publishes four values of A and four of B.
inline void add_quads(float* c, const uint32_t* a, const uint32_t* b, bool is_transposed, const CallSite& site) {
  Warp& warp = *current->warp;
  float* all_a = warp.a[warp.parity];
  float* all_b = warp.b[warp.parity];
  for (int i = 0; i < 4; ++i) {
    all_a[lane() * 4 + i] = quant::f16_to_f32(uint16_t(a[i / 2] >> i % 2 * 16));
    all_b[lane() * 4 + i] = quant::f16_to_f32(uint16_t(b[i / 2] >> i % 2 * 16));
  }
  exchange(is_transposed, site).of(31, site);  // a whole warp
  const int quad = lane() / 4 % 4 * 4;
  const auto holder = [&](int of_eight) { return quad + of_eight % 4 + of_eight / 4 * 16; };
  for (int i = 0; i < 8; ++i) {
    const int row = lane() / 16 * 4 + lane() % 2 + i / 2 % 2 * 2, column = i / 4 * 4 + lane() / 2 % 2 * 2 + i % 2;
    for (int k = 0; k < 4; ++k) {
      const int at_b = is_transposed ? holder(k + column / 4 * 4) * 4 + column % 4 : holder(column) * 4 + k;
      c[i] += all_a[holder(row) * 4 + k] * all_b[at_b];
    }
  }
}

}  // namespace sim

inline void multiply_quads(float* c, const uint32_t* a, const uint32_t* b, bool is_transposed,
                           sim::Location where = sim::Location::current()) {
  sim::add_quads(c, a, b, is_transposed, {"multiply_quads", where});
}

}  // namespace lb::gpu

#include "gpu/quad_matrix.h"
// byte products use the row of a lane in quad_matrix.h
#include "gpu/quad_bytes.h"
