// CastRows to fp8 numbers with a scale per row and 128 values, for GEMMs that multiply fp8. Grid: x walks a row, y the
// rows; a thread converts 16 values. Bound: bandwidth, 5 bytes per value.
// Needs: wgmma
#include "dialect.h"

#include "gpu/gemm/shape.h"

namespace lb::gpu {

// Eight neighbouring lanes convert the 128 values of a scale. n_in is a multiple of 128.
LB_KERNEL(cast_rows_f8_kernel, CastRows, 256, 1) {
  const int first = (block_id() * n_threads() + thread_id()) * 16, row = block_id_y();
  dependents_may_launch();
  wait_for_previous();
  const bool is_inside = first < p.n_in;
  const float* from = p.x + long(row) * p.n_in + first;
  f32x4 v[4];
  float largest = kLeastFp8Block;
  LB_UNROLL
  for (int i = 0; i < 4; ++i) {
    v[i] = is_inside ? load<f32x4>(from + 4 * i) : f32x4{};
    LB_UNROLL
    for (int j = 0; j < 4; ++j) largest = max(largest, v[i][j] < 0 ? -v[i][j] : v[i][j]);
  }
  LB_UNROLL
  for (int lanes = 1; lanes < 8; lanes *= 2) largest = max(largest, shuffle_xor(largest, lanes));
  if (!is_inside) return;
  const float inverse = kMaxFp8 / largest;
  u32x4 codes = {};
  LB_UNROLL
  for (int i = 0; i < 4; ++i) {
    LB_UNROLL
    for (int j = 0; j < 4; ++j) codes[i] |= uint32_t(to_fp8(v[i][j] * inverse).bits) << 8 * j;
  }
  const int block = first / kFp8Values, piece = first % kFp8Values / 16;
  const long at = long(block) * padded_rows(p.rows) + row;
  auto* y = static_cast<uint8_t*>(p.y);
  store(y + at * kTileRowBytes + 16 * (piece ^ row % 8), codes);
  if (piece == 0) reinterpret_cast<float*>(y + fp8_x_scales_at(p.rows, p.n_in))[at] = largest * (1 / kMaxFp8);
}

}  // namespace lb::gpu
