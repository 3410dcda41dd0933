// A warp's products of fp8 and block-scaled fp8 and fp4 operands with fp32 sums, by the published rule (fused_sum.h):
// C[16, 8] += A[16, k] B[8, k]^T. A lane holds the same values as on a chip (src/cuda/narrow_matrix.h).
#pragma once

#include "fused_sum.h"

namespace lb::gpu {
namespace sim {

inline constexpr float kFp4Values[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

// One row of each operand, and their scales.
struct NarrowRows {
  const uint8_t *a, *b;
  uint32_t scales_a, scales_b;
};

// Lanes copy their operand words and scales to the warp's operand buffers. Then each lane adds to its sums:
// sum(c, rows).
template <class Sum>
void multiply_narrow(float (&c)[4], const ByteHalf (&a)[2], const BytesB& b, uint32_t scales_a, uint32_t scales_b,
                     const CallSite& site, Sum&& sum) {
  constexpr int kWords = 8, kScalesA = 16 * kWords, kScalesB = kByteRows * kWords;
  Warp& warp = *current->warp;
  float* all_a = warp.a[warp.parity];
  float* all_b = warp.b[warp.parity];
  const int row = lane() / 4, column = lane() % 4;
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 2; ++i) std::memcpy(all_a + (row + 8 * i) * kWords + 4 * half + column, &a[half].r[i], 4);
    std::memcpy(all_b + row * kWords + 4 * half + column, &b.r[half], 4);
  }
  if (column < 2) std::memcpy(all_a + kScalesA + row + 8 * column, &scales_a, 4);
  if (column == 0) std::memcpy(all_b + kScalesB + row, &scales_b, 4);
  exchange(0, site).of(31, site);  // a whole warp
  for_each_sum([&](int row_a, int row_b, int, int, int i) {
    NarrowRows rows = {reinterpret_cast<const uint8_t*>(all_a + row_a * kWords),
                       reinterpret_cast<const uint8_t*>(all_b + row_b * kWords), 0, 0};
    std::memcpy(&rows.scales_a, all_a + kScalesA + row_a, 4);
    std::memcpy(&rows.scales_b, all_b + kScalesB + row_b, 4);
    c[i] = sum(c[i], rows);
  });
}

template <int kCount>
void decode_fp8(const uint8_t* bytes, float (&values)[kCount]) {
  for (int k = 0; k < kCount; ++k) values[k] = to_f32(fp8_e4m3{bytes[k]});
}
inline float fp4_value(const uint8_t* bytes, int k) {
  const int code = bytes[k / 2] >> k % 2 * 4;
  return code & 8 ? -kFp4Values[code & 7] : kFp4Values[code & 7];
}

// A scale as significand and exponent. NaN has a significand that is not a number.
struct Scale {
  float significand;
  int exponent;
};
inline Scale e8m0_scale(uint32_t byte) { return {byte == 0xff ? NAN : 1.0f, int(byte) - 127}; }
inline Scale e4m3_scale(uint32_t byte) {
  constexpr int kLeast = -6;
  const float value = to_f32(fp8_e4m3{uint8_t(byte & 0x7f)});
  const int exponent = exponent_of(value, kLeast);
  return {std::ldexp(value, -exponent), exponent};
}

// The 64 products of fp4 numbers are added exactly in groups of 16, and scaled. A group without a product, or with a
// scale of 0, has no exponent.
template <int kScaleValues, class ScaleOf>
float fp4_sum(float c, const NarrowRows& rows, ScaleOf&& scale_of) {
  constexpr int kGroup = 16, kGroups = 4;
  Term terms[kGroups];
  for (int group = 0; group < kGroups; ++group) {
    const int bit = 8 * (group * kGroup / kScaleValues);
    const Scale x = scale_of(rows.scales_a >> bit & 0xff), y = scale_of(rows.scales_b >> bit & 0xff);
    float dot = 0;
    bool has_product = false;
    for (int k = group * kGroup; k < (group + 1) * kGroup; ++k) {
      const float product = fp4_value(rows.a, k) * fp4_value(rows.b, k);
      dot += product;
      has_product = has_product || product != 0;
    }
    const float significand = x.significand * y.significand;
    const int exponent = x.exponent + y.exponent;
    terms[group] = {std::ldexp(double(dot) * significand, exponent),
                    has_product && significand != 0 ? exponent : kZero};
  }
  return fused_sum<35, 23>(c, terms);
}

}  // namespace sim

template <int kSumBits>
void multiply_fp8(float (&c)[4], const ByteHalf (&a)[2], const BytesB& b,
                  sim::Location where = sim::Location::current()) {
  static_assert(kSumBits == 13 || kSumBits == 25);
  sim::multiply_narrow(c, a, b, 0, 0, {"multiply_fp8", where}, [](float sum, const sim::NarrowRows& rows) {
    float x[32], y[32];
    sim::decode_fp8(rows.a, x);
    sim::decode_fp8(rows.b, y);
    if constexpr (kSumBits == 13) {  // sm_89: one half of k after the other
      for (int half = 0; half < 32; half += 16) {
        sim::Term terms[16];
        sim::set_fp8_terms(terms, x + half, y + half);
        sum = sim::fused_sum<13, 13>(sum, terms);
      }
      return sum;
    } else {
      sim::Term terms[32];
      sim::set_fp8_terms(terms, x, y);
      return sim::fused_sum<25, 23>(sum, terms);
    }
  });
}

inline void multiply_nvfp4(float (&c)[4], const ByteHalf (&a)[2], const BytesB& b, uint32_t scales_a, uint32_t scales_b,
                           sim::Location where = sim::Location::current()) {
  sim::multiply_narrow(
      c, a, b, scales_a, scales_b, {"multiply_nvfp4", where},
      [](float sum, const sim::NarrowRows& rows) { return sim::fp4_sum<16>(sum, rows, sim::e4m3_scale); });
}
inline void multiply_mxfp4(float (&c)[4], const ByteHalf (&a)[2], const BytesB& b, uint32_t scales_a, uint32_t scales_b,
                           sim::Location where = sim::Location::current()) {
  sim::multiply_narrow(
      c, a, b, scales_a, scales_b, {"multiply_mxfp4", where},
      [](float sum, const sim::NarrowRows& rows) { return sim::fp4_sum<32>(sum, rows, sim::e8m0_scale); });
}
inline void multiply_mxfp8(float (&c)[4], const ByteHalf (&a)[2], const BytesB& b, uint32_t scales_a, uint32_t scales_b,
                           sim::Location where = sim::Location::current()) {
  sim::multiply_narrow(c, a, b, scales_a, scales_b, {"multiply_mxfp8", where},
                       [](float sum, const sim::NarrowRows& rows) {
                         const sim::Scale scale_x = sim::e8m0_scale(rows.scales_a & 0xff),
                                          scale_y = sim::e8m0_scale(rows.scales_b & 0xff);
                         float x[32], y[32];
                         sim::decode_fp8(rows.a, x);
                         sim::decode_fp8(rows.b, y);
                         sim::Term terms[32];
                         sim::set_fp8_terms(terms, x, y, scale_x.exponent + scale_y.exponent);
                         for (sim::Term& term : terms) term.value *= scale_x.significand * scale_y.significand;
                         return sim::fused_sum<25, 23>(sum, terms);
                       });
}

// Two e2m1 numbers in a byte, lo in the low nibble: to nearest, half to even, at most 6.
inline uint32_t to_fp4_pair(float lo, float hi) {
  const auto code = [](float x) {
    const float m = std::fabs(x);
    const int magnitude = (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) + (m >= 3.5f) + (m > 5);
    return uint32_t(magnitude | (std::signbit(x) ? 8 : 0));
  };
  return code(lo) | code(hi) << 4;
}

}  // namespace lb::gpu
