// Products of quantised weights with 8-bit activations, for AVX2 and for any compiler target.
// Four weight rows are unpacked to signed codes in scratch, then every activation row meets them: integer dots of
// 32 values in 8 lanes of 4, so that half a block (the runs of 16 of some types) is four whole lanes.
//   y = sum_blocks s * (scale[lane] * dot[lane] + offset[lane] * sum[lane])
#pragma once

#include "cpu/kernels.h"
#include "quant/decode.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace lb::cpu {
namespace {

#if defined(__AVX2__)
using Lanes = __m256;
Lanes lanes_zero() { return _mm256_setzero_ps(); }
Lanes lanes_load(const float* p) { return _mm256_loadu_ps(p); }
Lanes lanes_fma(Lanes a, Lanes b, Lanes c) { return _mm256_fmadd_ps(a, b, c); }
Lanes lanes_scale(Lanes a, float s) { return _mm256_mul_ps(a, _mm256_set1_ps(s)); }
float lanes_sum(Lanes a) {
  __m128 v = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  v = _mm_add_ps(v, _mm_movehl_ps(v, v));
  return _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps(v, v, 1)));
}
// |q| <= 128 and |a| <= 127: a pair of products is at most 32512, so the 16-bit sums do not saturate.
Lanes lanes_dot(const int8_t* q, const int8_t* a) {
  const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q));
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a));
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_sign_epi8(w, w), _mm256_sign_epi8(x, w));
  return _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
Lanes lanes_sum4(const int8_t* a) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a));
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), x);
  return _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#else
struct Lanes {
  float v[8];
};
Lanes lanes_zero() { return {}; }
Lanes lanes_load(const float* p) {
  Lanes out;
  for (int l = 0; l < 8; ++l) out.v[l] = p[l];
  return out;
}
Lanes lanes_fma(Lanes a, Lanes b, Lanes c) {
  for (int l = 0; l < 8; ++l) c.v[l] += a.v[l] * b.v[l];
  return c;
}
Lanes lanes_scale(Lanes a, float s) {
  for (int l = 0; l < 8; ++l) a.v[l] *= s;
  return a;
}
float lanes_sum(Lanes a) {
  return ((a.v[0] + a.v[4]) + (a.v[2] + a.v[6])) + ((a.v[1] + a.v[5]) + (a.v[3] + a.v[7]));
}
Lanes lanes_dot(const int8_t* q, const int8_t* a) {
  Lanes out;
  for (int l = 0; l < 8; ++l)
    out.v[l] = float(q[4 * l] * a[4 * l] + q[4 * l + 1] * a[4 * l + 1] + q[4 * l + 2] * a[4 * l + 2] +
                     q[4 * l + 3] * a[4 * l + 3]);
  return out;
}
Lanes lanes_sum4(const int8_t* a) {
  Lanes out;
  for (int l = 0; l < 8; ++l) out.v[l] = float(a[4 * l] + a[4 * l + 1] + a[4 * l + 2] + a[4 * l + 3]);
  return out;
}
#endif

constexpr int kUnpackedRows = 4;

// One weight row in scratch: n_in codes, then 8 scales and 8 offsets (one a lane) for each 32 of them.
struct UnpackedRow {
  int8_t* q;
  float* scale;
  float* offset;
};

UnpackedRow unpacked_row(std::byte* scratch, int i, int n_in) {
  std::byte* p = scratch + size_t(i) * n_in * 3;
  return {reinterpret_cast<int8_t*>(p + 2 * size_t(n_in)), reinterpret_cast<float*>(p),
          reinterpret_cast<float*>(p + n_in)};
}

template <class Block>
void unpack_row(const Block* block, int n_in, UnpackedRow row) {
  constexpr int kLanes = Block::kSub / 4;
  float* scale = row.scale;
  float* offset = row.offset;
  for (int i = 0; i < n_in; i += Block::kValues, ++block) {
    for (int j = 0; j < Block::kValues / Block::kSub; ++j) {
      const quant::Run run = unpack(*block, j, row.q + i + j * Block::kSub);
      for (int l = 0; l < kLanes; ++l) *scale++ = run.scale;
      if constexpr (Block::kHasMin)
        for (int l = 0; l < kLanes; ++l) *offset++ = run.offset;
    }
  }
}

template <class Block>
void linear_q8_type(const Linear& op, const Q8Rows& x, int begin, int end, std::byte* scratch) {
  const Block* w = static_cast<const Block*>(op.w);
  const long blocks_per_row = op.n_in / Block::kValues;
  UnpackedRow rows[kUnpackedRows];
  for (int i = 0; i < kUnpackedRows; ++i) rows[i] = unpacked_row(scratch, i, op.n_in);
  for (int o = begin; o < end; o += kUnpackedRows) {
    const int n = end - o < kUnpackedRows ? end - o : kUnpackedRows;
    for (int i = 0; i < kUnpackedRows; ++i) unpack_row(w + (o + (i < n ? i : 0)) * blocks_per_row, op.n_in, rows[i]);
    for (int r = 0; r < op.rows; ++r) {
      const int8_t* a = x.q + long(r) * x.stride;
      const float* s = x.scale + long(r) * x.n_blocks;
      Lanes acc[kUnpackedRows];
      for (Lanes& lanes : acc) lanes = lanes_zero();
      for (int b = 0; b < op.n_in / 32; ++b) {
        const Lanes sums = lanes_scale(lanes_sum4(a + 32 * b), s[b]);
        for (int i = 0; i < kUnpackedRows; ++i) {
          const Lanes dot = lanes_scale(lanes_dot(rows[i].q + 32 * b, a + 32 * b), s[b]);
          acc[i] = lanes_fma(dot, lanes_load(rows[i].scale + 8 * b), acc[i]);
          if constexpr (Block::kHasMin) acc[i] = lanes_fma(sums, lanes_load(rows[i].offset + 8 * b), acc[i]);
        }
      }
      for (int i = 0; i < n; ++i) {
        const long at = long(r) * op.n_out + o + i;
        op.y[at] = lanes_sum(acc[i]) + (op.add ? op.add[at] : 0.0f);
      }
    }
  }
}

void linear_q8(const Linear& op, const Q8Rows& x, int begin, int end, std::byte* scratch) {
  quant::visit_block(op.type, [&](auto tag) { linear_q8_type<decltype(tag)>(op, x, begin, end, scratch); });
}

}  // namespace
}  // namespace lb::cpu
