// CastRows with scales, for the wgmma GEMMs: f16 numbers with a scale per row, fp8 numbers with a scale per row and 128
// values. Grid: f16: a block per row; fp8: x walks a row, y the rows. A thread converts 16 values at a time. Bound:
// bandwidth, 6 and 5 bytes per value.
// Needs: wgmma
#include "dialect.h"

#include "gpu/gemm/shape.h"

namespace lb::gpu {

// Reads x twice; the second time it comes from L2. n_in is a multiple of 16.
LB_KERNEL(cast_rows_f16_kernel, CastRows, 256, 4) {
  LB_SHARED(float, scratch, 32);
  const int row = block_id(), step = 16 * n_threads();
  const float* from = p.x + long(row) * p.n_in;
  dependents_may_launch();
  wait_for_previous();
  float largest = 0;
  for (int i = 4 * thread_id(); i < p.n_in; i += 4 * n_threads()) {
    const f32x4 v = load<f32x4>(from + i);
    LB_UNROLL
    for (int j = 0; j < 4; ++j) largest = max(largest, v[j] < 0 ? -v[j] : v[j]);
  }
  largest = block_max(largest, scratch);
  // The largest value gets the exponent 14. Powers of two change no bit of normal numbers.
  const uint32_t exponent = max(int(quant::bits_of(largest) >> 23), 15);
  const float factor = quant::float_of(268 - exponent << 23);
  auto* y = static_cast<uint16_t*>(p.y);
  if (thread_id() == 0)
    reinterpret_cast<float*>(y + f16_x_scales_at(p.rows, p.n_in))[row] = quant::float_of(exponent - 14 << 23);
  for (int first = 16 * thread_id(); first < tiled_values(p.n_in); first += step) {
    f16 values[16] = {};
    LB_UNROLL
    for (int i = 0; i < 4; ++i) {
      const f32x4 v = first < p.n_in ? load<f32x4>(from + first + 4 * i) : f32x4{};
      LB_UNROLL
      for (int j = 0; j < 4; ++j) values[pair_index(4 * i + j)] = to_f16(v[j] * factor);
    }
    const int chunk = first / kHalfValues, piece = first % kHalfValues / 8;
    uint16_t* to = y + (long(chunk) * padded_rows(p.rows) + row) * kHalfValues;
    LB_UNROLL
    for (int half = 0; half < 2; ++half) {
      Vec<uint16_t, 8> out;
      LB_UNROLL
      for (int i = 0; i < 8; ++i) out[i] = values[8 * half + i].bits;
      store(to + 8 * ((piece + half) ^ row % 8), out);
    }
  }
}

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
