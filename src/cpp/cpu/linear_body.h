// The four linear bodies of one instruction set; each isa_*.cpp includes this file once.
// embed_rows and quantize_q8 are defined here, the products in the headers included below.
#pragma once

#include "cpu/kernels.h"
#include "cpu/linear_f32.h"
#include "cpu/simd.h"
#include "quant/rows.h"
#if defined(__AVX512VNNI__)
#include "cpu/linear_q8_avx512.h"
#else
#include "cpu/linear_q8.h"
#endif

namespace lb::cpu {
namespace {

void embed_rows(const Embed& op, int begin, int end) {
  const long stride = quant::bytes_of(op.type, op.dim);
  for (int r = begin; r < end; ++r) {
    float* y = op.y + long(r) * op.dim;
    quant::dequantize_row(op.type, static_cast<const char*>(op.table) + op.ids[r] * stride, y, op.dim);
    if (op.scale == 1) continue;
    for (int i = 0; i < op.dim; ++i) y[i] *= op.scale;
  }
}

#if defined(__AVX512F__)
int32_t largest_lane(vi x) { return _mm512_reduce_max_epi32(__builtin_bit_cast(__m512i, x)); }
int32_t lane_sum(vi x) { return _mm512_reduce_add_epi32(__builtin_bit_cast(__m512i, x)); }
#else
int32_t largest_lane(vi x) {
  int32_t largest = x[0];
  for (int l = 1; l < kLanes; ++l) largest = x[l] > largest ? x[l] : largest;
  return largest;
}
int32_t lane_sum(vi x) {
  int32_t sum = 0;
  for (int l = 0; l < kLanes; ++l) sum += x[l];
  return sum;
}
#endif

// A block with an infinity or a NaN gets a NaN scale and q = 0, so every product with the block is NaN.
void quantize_q8(const float* x, int n_in, int stride, int8_t* q, float* scale, int32_t* sum) {
  typedef int8_t vb __attribute__((vector_size(kLanes)));
  constexpr int kVectors = 32 / kLanes;
  for (int b = 0; b < stride / 32; ++b, x += 32, q += 32) {
    __builtin_memset(q, 0, 32);
    scale[b] = 0;
    sum[b] = 0;
    if (32 * b >= n_in) continue;
    vf v[kVectors];
    vi magnitude = {};  // the bits of |x| compare as integers like |x|, and NaN is the largest
    for (int i = 0; i < kVectors; ++i) {
      v[i] = load(x + i * kLanes);
      const vi bits = __builtin_bit_cast(vi, v[i]) & 0x7fffffff;
      magnitude = bits > magnitude ? bits : magnitude;
    }
    const int32_t largest = largest_lane(magnitude);
    scale[b] = quant::float_of(largest < 0x7f800000 ? uint32_t(largest) : 0x7fc00000u) / 127.0f;
    if (!(scale[b] > 0)) continue;
    vi total = {};
    for (int i = 0; i < kVectors; ++i) {
      v[i] /= scale[b];
      v[i] = v[i] > 127.0f ? splat(127.0f) : v[i];  // a subnormal scale is too coarse to bound the quotient
      v[i] = v[i] < -127.0f ? splat(-127.0f) : v[i];
      const vf shifted = v[i] + 0x1.8p23f;  // rounds to an integer in the low bits of the mantissa
      const vi rounded = __builtin_bit_cast(vi, shifted) - __builtin_bit_cast(int32_t, 0x1.8p23f);
      total += rounded;
      const vb narrow = __builtin_convertvector(rounded, vb);
      __builtin_memcpy(q + i * kLanes, &narrow, sizeof narrow);
    }
    sum[b] = lane_sum(total);
  }
}

}  // namespace
}  // namespace lb::cpu
