// How a thread stores 16 neighbouring values of a row of x in the forms that the wgmma GEMMs read (CastRows).
#pragma once

#include "gpu/gemm/shape.h"
#include "gpu/narrow.h"

namespace lb::gpu {

// Powers of two that give the largest value of a row the exponent 14, and undo it. They change no bit of normal
// numbers.
struct RowScale {
  float factor, inverse;
  LB_DEVICE explicit RowScale(float largest) {
    const uint32_t exponent = max(int(quant::bits_of(largest) >> 23), 15);
    factor = quant::float_of(268 - exponent << 23);
    inverse = quant::float_of(exponent - 14 << 23);
  }
};

// The values of a thread: 16 neighbouring ones in each pass of the block through the row; zero beyond the row.
using CastValues = f32x4[kCastPasses][4];
LB_DEVICE int first_value(int pass) { return (pass * n_threads() + thread_id()) * kCastValues; }
LB_DEVICE void read_values(const float* row, int n, CastValues& v) {
  LB_UNROLL
  for (int pass = 0; pass < kCastPasses; ++pass) {
    LB_UNROLL
    for (int i = 0; i < 4; ++i)
      v[pass][i] = first_value(pass) < n ? load<f32x4>(row + first_value(pass) + 4 * i) : f32x4{};
  }
}

LB_DEVICE float largest_of(const f32x4 (&v)[4], float largest) {
  LB_UNROLL
  for (int i = 0; i < 4; ++i) {
    LB_UNROLL
    for (int j = 0; j < 4; ++j) largest = max(largest, v[i][j] < 0 ? -v[i][j] : v[i][j]);
  }
  return largest;
}

// 16-bit numbers at values [first, first + 16) of a tiled row.
LB_DEVICE void store_tiled(const CastRows& p, int row, int first, const uint16_t (&numbers)[kCastValues]) {
  const int chunk = first / kHalfValues, piece = first % kHalfValues / 8;
  uint16_t* to = static_cast<uint16_t*>(p.y) + (long(chunk) * padded_rows(p.rows) + row) * kHalfValues;
  LB_UNROLL
  for (int half = 0; half < 2; ++half) {
    Vec<uint16_t, 8> out;
    LB_UNROLL
    for (int i = 0; i < 8; ++i) out[i] = numbers[8 * half + i];
    store(to + 8 * ((piece + half) ^ row % 8), out);
  }
}

// F16 with a scale per row, in the order of pairs of codes.
LB_DEVICE void store_f16(const CastRows& p, int row, int first, const f32x4 (&v)[4], float factor) {
  uint16_t numbers[kCastValues];
  LB_UNROLL
  for (int i = 0; i < kCastValues; ++i) numbers[pair_index(i)] = to_f16(v[i / 4][i % 4] * factor).bits;
  store_tiled(p, row, first, numbers);
}
LB_DEVICE void store_f16_scale(const CastRows& p, int row, float scale) {
  reinterpret_cast<float*>(static_cast<uint16_t*>(p.y) + f16_x_scales_at(p.rows, p.n_in))[row] = scale;
}

// fp8 numbers and their scale, which eight neighbouring lanes share. Whole warps call it; is_inside: first < n_in.
LB_DEVICE void store_fp8(const CastRows& p, int row, int first, const f32x4 (&v)[4], bool is_inside) {
  float largest = largest_of(v, kLeastFp8Block);
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
  const int block = first / kFp8Values, piece = first % kFp8Values / kCastValues;
  const long at = long(block) * padded_rows(p.rows) + row;
  auto* y = static_cast<uint8_t*>(p.y);
  store(y + at * kTileRowBytes + 16 * (piece ^ row % 8), codes);
  if (piece == 0) reinterpret_cast<float*>(y + fp8_x_scales_at(p.rows, p.n_in))[at] = largest * (1 / kMaxFp8);
}

}  // namespace lb::gpu
