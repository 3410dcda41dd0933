// Quantises activations to int8 codes (ops/round_rows.h): eight lanes per block of 32 values, four values per lane.
// Called by kernels that compute the activations, and by round_rows_kernel.
#pragma once

#include "ops/round_rows.h"

namespace lb::gpu {

// Correctly rounded x / d for |x| <= 127 d: one reciprocal serves many quotients, each corrected by its residual
// (Markstein's method). For tiny d the residual could be subnormal, so the code divides.
struct Divisor {
  float d, reciprocal;
  LB_DEVICE explicit Divisor(float value) : d(value), reciprocal(1.0f / value) {}
  LB_DEVICE float quotient(float x) const {
    if (d < 0x1p-80f) return x / d;
    const float q = x * reciprocal;
    return fma(fma(-q, d, x), reciprocal, q);
  }
};

LB_DEVICE float clamp_code(float q) { return min(max(q, -127.0f), 127.0f); }
LB_DEVICE uint32_t low_byte(float whole) { return uint32_t(int(whole)) & 0xff; }

LB_DEVICE int sum_over_block(int v) {
  LB_UNROLL
  for (int mask = 1; mask < 8; mask *= 2) v += shuffle_xor(v, mask);
  return v;
}

// Quantises four values into y[at..at+4); `at` is a flat index across rows. Bit-exact with RoundRows. Every lane of the
// warp must call it; is_inside must agree among the eight lanes of a block.
LB_DEVICE void round_four(const RoundedRows& y, long at, const f32x4& x, bool is_inside) {
  // The bits of |x| order like integers; NaN is above all numbers.
  int largest = 0;
  LB_UNROLL
  for (int j = 0; j < 4; ++j) largest = max(largest, int(quant::bits_of(x[j]) & 0x7fffffff));
  LB_UNROLL
  for (int mask = 1; mask < 8; mask *= 2) largest = max(largest, shuffle_xor(largest, mask));
  const float scale = quant::float_of(largest < 0x7f800000 ? uint32_t(largest) : 0x7fc00000u) / 127.0f;

  uint32_t high = 0, low = 0;
  if (scale > 0) {  // neither zero nor NaN
    const Divisor divisor(scale);
    LB_UNROLL
    for (int j = 0; j < 4; ++j) {
      const float q = divisor.quotient(x[j]);
      const float whole = clamp_code(round_even(q));
      high |= low_byte(whole) << 8 * j;
      low |= low_byte(clamp_code(round_even((q - whole) * 254.0f))) << 8 * j;
    }
  }
  const int high_sum = sum_over_block(dot4(int(high), 0x01010101, 0));
  const int low_sum = sum_over_block(dot4(int(low), 0x01010101, 0));
  if (!is_inside) return;
  store(y.high + at, high);
  if (y.low != nullptr) store(y.low + at, low);
  if (at % kRoundBlock == 0) {
    const float rest = y.low != nullptr ? float(low_sum) * (1 / 254.0f) : 0.0f;
    y.scale[at / kRoundBlock] = scale;
    y.sum[at / kRoundBlock] = scale * (float(high_sum) + rest);
  }
}

// 8-bit rounding in a quarter of the instructions, for latency-bound kernels. The reciprocal is a few ulp off, so a
// value halfway between two codes may round to the other code.
struct BlockScale {
  float top, inverse;
  // largest: the bits of the block's largest |x|.
  LB_DEVICE explicit BlockScale(int largest)
      : top(quant::float_of(largest < 0x7f800000 ? uint32_t(largest) : 0x7fc00000u)), inverse(0) {
    const float root = rsqrt_fast(top);
    if (top > 0x1p-100f) inverse = 127.0f * root * root;
  }
  LB_DEVICE float scale() const { return top * (1 / 127.0f); }
  // 1.5 * 2^23 has an ulp of 1, so the fma rounds to the nearest integer and leaves it in the low bits.
  LB_DEVICE uint32_t code(float x) const { return quant::bits_of(fma(x, inverse, 0x1.8p23f)) & 0xff; }
};
LB_DEVICE int magnitude(float x) { return int(quant::bits_of(x) & 0x7fffffff); }

// Like round_four, but always to 8 bits and without y.sum: readers sum the codes themselves.
LB_DEVICE void round_to_codes(const RoundedRows& y, int at, const f32x4& x, bool is_inside) {
  int largest = 0;
  LB_UNROLL
  for (int j = 0; j < 4; ++j) largest = max(largest, magnitude(x[j]));
  LB_UNROLL
  for (int mask = 1; mask < 8; mask *= 2) largest = max(largest, shuffle_xor(largest, mask));
  const BlockScale block(largest);
  uint32_t codes = 0;
  LB_UNROLL
  for (int j = 0; j < 4; ++j) codes |= block.code(x[j]) << 8 * j;
  if (!is_inside) return;
  store(y.high + at, codes);
  if (at % kRoundBlock == 0) y.scale[at / kRoundBlock] = block.scale();
}

}  // namespace lb::gpu
