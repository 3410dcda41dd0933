// GEMV formats of the weight types with one scale per 16 values: Q6_K, Q3_K and Q2_K.
#pragma once

#include "gpu/gemv/formats.h"

namespace lb::gpu {

// Subtracts 32 from each of four bytes of 0..63, as signed bytes: no carry crosses a byte.
LB_DEVICE uint32_t subtract_32(uint32_t bytes) { return (bytes + 0x60606060u) ^ 0x80808080u; }

// Rounded x, and -32 times the sum of each half, which subtracts 32 from 16 codes of 0..63 in one step.
struct HalvedX : RoundedX<32, 8> {
  int minus_32[2] = {};
  LB_DEVICE void read(const Gemv& p, int row, int piece) {
    RoundedX<32, 8>::read(p, row, piece);
    LB_UNROLL
    for (int half = 0; half < 2; ++half) {
      minus_32[half] = 0;
      LB_UNROLL
      for (int i = 0; i < 4; ++i)
        minus_32[half] = dot4(high[4 * half + i], int(0xe0e0e0e0u), minus_32[half]);  // -32 in each byte
    }
  }
  // Dot product of (16 codes - 32) with a half of x.
  LB_DEVICE float dot_minus_32(const uint32_t (&codes)[4], int half) const {
    int sum = minus_32[half];
    LB_UNROLL
    for (int i = 0; i < 4; ++i) sum = dot4(int(codes[i]), high[4 * half + i], sum);
    return float(sum);
  }
};

template <int kBits>
LB_DEVICE auto half_x() {
  if constexpr (kBits == 8) {
    return HalvedX{};
  } else {
    return RoundedX<32, kBits>{};
  }
}

// value = scale * (code - 32), codes of 0..63, a scale for each half of the piece.
template <int kBits>
struct Q6_KFormat {
  static constexpr DType kType = DType::kQ6_K;
  static constexpr int kValues = 32;
  using Rows = PlaneRows<kType, kValues, u32x4, u32x2, uint16_t, f16>;
  using Piece = typename Rows::Piece;
  using X = decltype(half_x<kBits>());
  struct Scale {
    uint16_t of_halves;  // signed bytes
    f16 d;
  };
  LB_DEVICE static Scale scale_of(const Piece& piece, int) { return {part<2>(piece), part<3>(piece)}; }
  LB_DEVICE static float dot(const Piece& piece, const Scale& scale, const X& x) {
    const u32x4& low = part<0>(piece);
    float sum = 0;
    LB_UNROLL
    for (int half = 0; half < 2; ++half) {
      uint32_t codes[4];
      LB_UNROLL
      for (int i = 0; i < 4; ++i) {
        const uint32_t high = part<1>(piece)[half] >> 2 * i & 0x03030303u;
        codes[i] = (low[i] >> 4 * half & 0x0f0f0f0fu) | high << 4;
        if constexpr (kBits == 16) codes[i] = subtract_32(codes[i]);
      }
      float product;
      if constexpr (kBits == 8) {
        product = x.dot_minus_32(codes, half);
      } else {
        product = x.dot(codes, 4 * half);
      }
      sum = fma(float(int8_t(scale.of_halves >> 8 * half)), product, sum);
    }
    return to_f32(scale.d) * x.scale * sum;
  }
  LB_DEVICE static float dot(const Piece& piece, const X& x, int index) {
    return dot(piece, scale_of(piece, index), x);
  }
};

// Rounded x for 64 codes, which have four scales.
template <int kBits>
struct RoundedX64 {
  RoundedX<32, kBits> halves[2];
  float sums[4] = {};  // each sums 16 rounded values
  LB_DEVICE void read(const Gemv& p, int row, int piece) {
    const uint32_t ones[4] = {0x01010101u, 0x01010101u, 0x01010101u, 0x01010101u};
    LB_UNROLL
    for (int i = 0; i < 2; ++i) halves[i].read(p, (long(row) * p.row_pieces + piece) * 64 + 32 * i);
    LB_UNROLL
    for (int i = 0; i < 4; ++i) sums[i] = dot(ones, i);
  }
  // Dot product of 16 codes with the i-th 16 values of x.
  LB_DEVICE float dot(const uint32_t (&codes)[4], int i) const {
    return halves[i / 2].scale * halves[i / 2].dot(codes, 4 * (i % 2));
  }
};

// value = scale * (code - 4), codes of 0..7.
template <int kBits>
struct Q3_KFormat {
  static constexpr DType kType = DType::kQ3_K;
  static constexpr int kValues = 64;
  using Rows = PlaneRows<kType, kValues, u32x4, u32x2, u32x2>;
  using Piece = typename Rows::Piece;
  using X = RoundedX64<kBits>;
  LB_DEVICE static float dot(const Piece& piece, const X& x, int index) {
    const u32x2 six_bits = part<2>(piece);
    const uint32_t scales = index % 2 ? six_bits[1] : six_bits[0];
    float sum = 0;
    LB_UNROLL
    for (int i = 0; i < 4; ++i) {
      uint32_t codes[4];
      LB_UNROLL
      for (int w = 0; w < 4; ++w)
        codes[w] = (part<0>(piece)[i] >> 2 * w & 0x03030303u) | (part<1>(piece)[i / 2] >> (i % 2 * 4 + w) & 0x01010101u)
                                                                    << 2;
      sum = fma(float(quant::six_bit_scale(scales, i)), x.dot(codes, i) - 4.0f * x.sums[i], sum);
    }
    return to_f32(f16{quant::six_bit_d(six_bits[0], six_bits[1])}) * sum;
  }
};

// value = scale * code - min, codes of 0..3.
template <int kBits>
struct Q2_KFormat {
  static constexpr DType kType = DType::kQ2_K;
  static constexpr int kValues = 64;
  using Rows = PlaneRows<kType, kValues, u32x4, uint32_t, f16x2>;
  using Piece = typename Rows::Piece;
  using X = RoundedX64<kBits>;
  LB_DEVICE static float dot(const Piece& piece, const X& x, int) {
    const uint32_t scales = part<1>(piece) & 0x0f0f0f0fu, mins = part<1>(piece) >> 4 & 0x0f0f0f0fu;
    float sum = 0, min_sum = 0;
    LB_UNROLL
    for (int i = 0; i < 4; ++i) {
      uint32_t codes[4];
      LB_UNROLL
      for (int w = 0; w < 4; ++w) codes[w] = part<0>(piece)[i] >> 2 * w & 0x03030303u;
      sum = fma(float(scales >> 8 * i & 0xff), x.dot(codes, i), sum);
      min_sum = fma(float(mins >> 8 * i & 0xff), x.sums[i], min_sum);
    }
    return to_f32(part<2>(piece).lo) * sum - to_f32(part<2>(piece).hi) * min_sum;
  }
};

}  // namespace lb::gpu
