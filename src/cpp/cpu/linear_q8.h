// Linear products of quantised weights with 8-bit activations, for AVX2 and for any other instruction set.
// Four weight rows are unpacked to signed codes in scratch and multiplied with every activation row. An integer dot
// product of 32 values has 8 lanes of 4 values, so a sub-block of 16 values is four whole lanes.
//   y = sum_blocks s * (scale[lane] * dot[lane] + offset[lane] * sum[lane])
#pragma once

#include "cpu/kernels.h"
#include "quant/rows.h"
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
typedef float vf4 __attribute__((vector_size(16)));
typedef int32_t vi4 __attribute__((vector_size(16)));
typedef int16_t vs8 __attribute__((vector_size(16)));
typedef int8_t vb8 __attribute__((vector_size(8)));

struct Lanes {
  vf4 low, high;
};
Lanes lanes_zero() { return {vf4{}, vf4{}}; }
Lanes lanes_load(const float* p) {
  Lanes out;
  __builtin_memcpy(&out, p, sizeof out);
  return out;
}
Lanes lanes_fma(Lanes a, Lanes b, Lanes c) { return {a.low * b.low + c.low, a.high * b.high + c.high}; }
Lanes lanes_scale(Lanes a, float s) { return {a.low * s, a.high * s}; }
float lanes_sum(Lanes a) {
  const vf4 v = a.low + a.high;
  return (v[0] + v[2]) + (v[1] + v[3]);
}
vs8 widen(const int8_t* p) {
  vb8 x;
  __builtin_memcpy(&x, p, sizeof x);
  return __builtin_convertvector(x, vs8);
}
vf4 add_halves(vs8 v) {
  typedef int16_t vs4 __attribute__((vector_size(8)));
  vs4 half[2];
  __builtin_memcpy(half, &v, sizeof v);
  return __builtin_convertvector(__builtin_convertvector(half[0], vi4) + __builtin_convertvector(half[1], vi4), vf4);
}
// Each lane sums every fourth of 16 products. |q| <= 128 and |a| <= 127, so the sum of two products fits 16 bits.
vf4 dot16(const int8_t* q, const int8_t* a) { return add_halves(widen(q) * widen(a) + widen(q + 8) * widen(a + 8)); }
Lanes lanes_dot(const int8_t* q, const int8_t* a) { return {dot16(q, a), dot16(q + 16, a + 16)}; }
Lanes lanes_sum4(const int8_t* a) {
  return {add_halves(widen(a) + widen(a + 8)), add_halves(widen(a + 16) + widen(a + 24))};
}
#endif

// unpack_sub() is quant::unpack(), vectorised for the most common types.
typedef uint8_t vb16 __attribute__((vector_size(16)));
typedef uint16_t vu8 __attribute__((vector_size(16)));

inline vb16 load16(const void* p) {
  vb16 x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
inline void store16(int8_t* p, vb16 x) { __builtin_memcpy(p, &x, sizeof x); }
// Shifts each byte right by `shift` and masks it. The shift is of 16-bit words, so `mask` must clear the bits that come
// from the neighbouring byte.
inline vb16 bits16(const uint8_t* p, int shift, int mask) {
  return __builtin_bit_cast(vb16, __builtin_bit_cast(vu8, load16(p)) >> shift) & uint8_t(mask);
}
inline float half_to_float(uint16_t h) {
#if defined(__F16C__)
  return _cvtsh_ss(h);
#else
  return quant::f16_to_f32(h);
#endif
}

template <class Block>
quant::ScaleOffset unpack_sub(const Block& b, int i, int8_t* q) {
  return quant::unpack(b, i, q);
}
quant::ScaleOffset unpack_sub(const quant::BlockQ4_0& b, int, int8_t* q) {
  store16(q, bits16(b.qs, 0, 15) - 8);
  store16(q + 16, bits16(b.qs, 4, 15) - 8);
  return {half_to_float(b.d), 0};
}
quant::ScaleOffset unpack_sub(const quant::BlockQ4_1& b, int, int8_t* q) {
  store16(q, bits16(b.qs, 0, 15));
  store16(q + 16, bits16(b.qs, 4, 15));
  return {half_to_float(b.d), half_to_float(b.m)};
}
quant::ScaleOffset unpack_sub(const quant::BlockQ8_0& b, int, int8_t* q) {
  __builtin_memcpy(q, b.q, 32);
  return {half_to_float(b.d), 0};
}
quant::ScaleOffset unpack_sub(const quant::BlockQ4_K& b, int j, int8_t* q) {
  for (int l = 0; l < 32; l += 16) store16(q + l, bits16(b.qs + 32 * (j / 2) + l, 4 * (j % 2), 15));
  return quant::k4_scale(half_to_float(b.d), half_to_float(b.dmin), b.scales, j);
}
quant::ScaleOffset unpack_sub(const quant::BlockQ5_K& b, int j, int8_t* q) {
  for (int l = 0; l < 32; l += 16) {
    const vb16 high = bits16(b.qh + l, j, 1);
    store16(q + l, bits16(b.qs + 32 * (j / 2) + l, 4 * (j % 2), 15) + high * 16);
  }
  return quant::k4_scale(half_to_float(b.d), half_to_float(b.dmin), b.scales, j);
}
quant::ScaleOffset unpack_sub(const quant::BlockQ6_K& b, int i, int8_t* q) {
  const int half = i / 8, group = i / 2 % 4, l = 16 * (i % 2);  // groups of 32 values
  const vb16 low = bits16(b.ql + 64 * half + 32 * (group % 2) + l, 4 * (group / 2), 15);
  store16(q, low + (bits16(b.qh + 32 * half + l, 2 * group, 3) << 4) - 32);
  return {half_to_float(b.d) * float(b.scales[i]), 0};
}

#if defined(__AVX2__)
quant::ScaleOffset unpack_sub(const quant::BlockNVFP4& b, int i, int8_t* q) {
  const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(b.qs[i]));
  const __m128i nibbles = _mm_and_si128(_mm_unpacklo_epi64(packed, _mm_srli_epi16(packed, 4)), _mm_set1_epi8(15));
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(quant::kMxfp4Values));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm_shuffle_epi8(values, nibbles));
  return {quant::half_of_e4m3(b.d[i]), 0};
}
quant::ScaleOffset unpack_sub(const quant::BlockNVFP4Scaled& b, int i, int8_t* q) {
  return unpack_sub(static_cast<const quant::BlockNVFP4&>(b), i, q);
}
#endif

constexpr int kUnpackedRows = 4;

// One weight row in scratch: n_in codes, and 8 scales and 8 offsets (one per lane) per 32 codes.
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
      const quant::ScaleOffset sub = unpack_sub(*block, j, row.q + i + j * Block::kSub);
      for (int l = 0; l < kLanes; ++l) *scale++ = sub.scale;
      if constexpr (Block::kHasMin)
        for (int l = 0; l < kLanes; ++l) *offset++ = sub.offset;
    }
  }
}

template <class Block>
void linear_q8_type(const Linear& op, const Q8Rows& x, int begin, int end, std::byte* scratch) {
  UnpackedRow rows[kUnpackedRows];
  for (int i = 0; i < kUnpackedRows; ++i) rows[i] = unpacked_row(scratch, i, op.n_in);
  for (int o = begin; o < end; o += kUnpackedRows) {
    const int n = end - o < kUnpackedRows ? end - o : kUnpackedRows;
    float factors[kUnpackedRows];
    for (int i = 0; i < kUnpackedRows; ++i) {
      const Block* w = quant::row_blocks<Block>(op.w, o + (i < n ? i : 0), op.n_in);
      factors[i] = quant::row_factor(w);
      unpack_row(w, op.n_in, rows[i]);
    }
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
        op.y[at] = factors[i] * lanes_sum(acc[i]) + (op.add ? op.add[at] : 0.0f);
      }
    }
  }
}

void linear_q8(const Linear& op, const Q8Rows& x, int begin, int end, std::byte* scratch) {
  quant::visit_block(op.type, [&](auto tag) { linear_q8_type<decltype(tag)>(op, x, begin, end, scratch); });
}

}  // namespace
}  // namespace lb::cpu
