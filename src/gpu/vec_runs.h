// Quantised types with one scale for each run of 32 values in the mat-vec: all but Q6_K, Q3_K and Q2_K.
#pragma once

#include "plane_scales.h"
#include "vec_formats.h"

namespace lb::gpu {

template <int kBits>
struct Q8_0Format {
  static constexpr DType kType = DType::kQ8_0;
  static constexpr int kValues = 16;
  using Rows = PlaneRows<kType, kValues, u32x4, f16>;
  using Piece = typename Rows::Piece;
  using X = RoundedX<kValues, kBits>;
  LB_DEVICE static float dot(const Piece& piece, const X& x, int) {
    return to_f32(part<1>(piece)) * x.scale * x.dot(part<0>(piece).v, 0);
  }
};

// Nibbles in plane 0, the fifth bits of five-bit types in plane 1, scales in the last.
template <DType kType>
LB_DEVICE auto run_rows() {
  if constexpr (quant::plane_format(kType).n_planes == 3) {
    return PlaneRows<kType, 32, u32x4, uint32_t, ScaleEntry<kType>>{};
  } else {
    return PlaneRows<kType, 32, u32x4, ScaleEntry<kType>>{};
  }
}

LB_DEVICE u32x4 packed(const int8_t (&bytes)[16]) {
  u32x4 words = {};
  LB_UNROLL
  for (int i = 0; i < 16; ++i) words[i / 4] |= uint32_t(uint8_t(bytes[i])) << 8 * (i % 4);
  return words;
}

template <DType kType_, int kBits>
struct RunFormat {
  static constexpr DType kType = kType_;
  static constexpr int kValues = 32;
  using Rows = decltype(run_rows<kType>());
  using Piece = typename Rows::Piece;
  using X = RoundedX<kValues, kBits>;

  LB_DEVICE static float dot(const Piece& piece, const X& x, int place) {
    uint32_t codes[8];
    LB_UNROLL
    for (int i = 0; i < 4; ++i) read_codes(part<0>(piece)[i], codes[i], codes[4 + i]);
    if constexpr (Rows::kPlanes == 3) {
      LB_UNROLL
      for (int i = 0; i < 8; ++i) codes[i] |= (part<1>(piece) >> i & 0x01010101u) << 4;
    }
    const quant::Run run = run_at(part<Rows::kPlanes - 1>(piece), place % 8);
    const float products = x.scale * x.dot(codes, 0);
    if constexpr (kHasOffsets<kType>) {
      return run.scale * products + run.offset * x.sum;
    } else {
      return run.scale * (products - kLess * x.sum);
    }
  }

 private:
  static constexpr float kLess = kType == DType::kQ4_0 ? 8 : kType == DType::kQ5_0 ? 16 : 0;  // codes are less it

  // The low nibbles of 16 bytes are the first half of a run, the high ones the second.
  LB_DEVICE static void read_codes(uint32_t nibbles, uint32_t& first, uint32_t& second) {
    if constexpr (kType == DType::kIQ4_NL || kType == DType::kIQ4_XS || kType == DType::kMXFP4) {
      const u32x4 table = packed(kType == DType::kMXFP4 ? quant::kMxfp4Values : quant::kIq4Values);
      const u32x2 codes = lookup16(table, nibbles);
      first = codes[0];
      second = codes[1];
    } else {
      first = nibbles & 0x0f0f0f0fu;
      second = nibbles >> 4 & 0x0f0f0f0fu;
    }
  }
};

}  // namespace lb::gpu
