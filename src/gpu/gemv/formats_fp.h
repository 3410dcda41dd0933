// GEMV formats of NVFP4 and FP8.
#pragma once

#include "gpu/gemv/formats.h"
#include "gpu/nibble_table.h"
#include "gpu/plane_scales.h"

namespace lb::gpu {

// x in the order in which NVFP4Format looks up codes: lookup8 returns eight values, here of one scale, of two words
// that alternate.
template <int kBits>
struct HalfLookupX : RoundedX<32, kBits> {
  LB_DEVICE void read(const Gemv& p, int row, int piece) {
    RoundedX<32, kBits>::read(p, row, piece);
    LB_UNROLL
    for (int i = 0; i < 8; i += 2) {
      reorder(this->high[i], this->high[i + 1]);
      if constexpr (kBits == 16) reorder(this->low[i], this->low[i + 1]);
    }
  }

 private:
  LB_DEVICE static void reorder(int& first, int& second) {
    const u32x2 words = lookup8_order(uint32_t(first), uint32_t(second));
    first = int(words[0]);
    second = int(words[1]);
  }
};

// A piece is 32 codes, their two scales and the row's ScaledHeader, of which products read the factor.
template <int kBits>
struct NVFP4Format {
  static constexpr DType kType = DType::kNVFP4;
  static constexpr int kValues = 32;
  using Rows = PlaneRows<kType, kValues, u32x4, uint16_t, float>;
  using Piece = typename Rows::Piece;
  using X = HalfLookupX<kBits>;

  LB_DEVICE static float dot(const Piece& piece, const X& x, int) {
    const uint32_t scales = part<1>(piece);
    const float first = to_f32(f16{uint16_t(scales << 7 & 0x3f80)}) * dot_half(piece, x, 0);
    const float both = fma(to_f32(f16{uint16_t(scales >> 1 & 0x3f80)}), dot_half(piece, x, 1), first);
    return part<2>(piece) * (0.5f * kE4m3Unit * x.scale) * both;  // the table's values are doubled
  }

 private:
  // The 16 values of a scale: the low nibbles of all words, or the high nibbles.
  LB_DEVICE static float dot_half(const Piece& piece, const X& x, int half) {
    uint32_t positive[4], negative[4];
    LB_UNROLL
    for (int i = 0; i < 4; i += 2) {
      const uint32_t first = part<0>(piece)[i], second = part<0>(piece)[i + 1];
      const uint32_t codes = half ? (first >> 4 & 0x0f0f0f0fu) | (second & 0xf0f0f0f0u)
                                  : (first & 0x0f0f0f0fu) | (second << 4 & 0xf0f0f0f0u);
      const Magnitudes looked = look_up<kType>(codes);
      LB_UNROLL
      for (int j = 0; j < 2; ++j) {
        positive[i + j] = looked.first[j];
        negative[i + j] = looked.second[j];
      }
    }
    return x.dot(positive, 4 * half) - x.dot(negative, 4 * half);
  }
};

// Rounded x as fp32 numbers, the products of its codes and scale.
template <int kBits>
struct WideX {
  float values[16] = {};

  LB_DEVICE void read(const Gemv& p, int row, int piece) { read(p, (long(row) * p.row_pieces + piece) * 16); }
  LB_DEVICE void read(const Gemv& p, long first) {
    RoundedX<16, kBits> x;
    x.read(p, first);
    LB_UNROLL
    for (int i = 0; i < 16; ++i) {
      const auto byte = [&](const auto& words) { return float(int8_t(words[i / 4] >> 8 * (i % 4))); };
      values[i] = byte(x.high);
      if constexpr (kBits == 16) values[i] += byte(x.low) * (1 / 254.0f);
      values[i] *= x.scale;
    }
  }
};

// A piece is 16 codes and the scale of their 128. Codes become f16 exactly, two per word.
template <int kBits>
struct F8_E4M3Format {
  static constexpr DType kType = DType::kF8_E4M3;
  static constexpr int kValues = 16;
  using Rows = PlaneRows<kType, kValues, u32x4, float>;
  using Piece = typename Rows::Piece;
  using X = WideX<kBits>;

  LB_DEVICE static float dot(const Piece& piece, const X& x, int) {
    float sums[2] = {};
    LB_UNROLL
    for (int i = 0; i < 4; ++i) {
      LB_UNROLL
      for (int odd = 0; odd < 2; ++odd) {
        const uint32_t pair = e4m3_pair(part<0>(piece)[i], odd);
        sums[0] = fma(to_f32(f16{uint16_t(pair)}), x.values[4 * i + odd], sums[0]);
        sums[1] = fma(to_f32(f16{uint16_t(pair >> 16)}), x.values[4 * i + odd + 2], sums[1]);
      }
    }
    return kE4m3Unit * part<1>(piece) * (sums[0] + sums[1]);
  }
};

}  // namespace lb::gpu
