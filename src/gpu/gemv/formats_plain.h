// GEMV formats of plain weights, F32, F16 and BF16, with fp32 x.
#pragma once

#include "gpu/gemv/formats.h"

namespace lb::gpu {

template <DType kType_>
struct PlainFormat {
  static constexpr DType kType = kType_;
  static constexpr int kValues = kType == DType::kF32 ? 4 : 8;
  using Piece = u32x4;

  struct Rows {
    const uint8_t* values = nullptr;
    Rows() = default;
    LB_DEVICE Rows(const Gemv& p, int matrix, int row, int piece)
        : values(p.matrices[matrix].w + long(row) * p.row_bytes[0] + 16 * piece) {}
    LB_DEVICE Piece read(int ahead) const { return load_stream<u32x4>(values + 16 * ahead); }
    LB_DEVICE void advance(const Gemv& p) { values += p.n_teams * p.row_bytes[0]; }
  };

  struct X {
    float x[kValues] = {};
    LB_DEVICE void read(const Gemv& p, int row, int piece) {
      const int n_in = p.group.products[0].n_in, first = piece * kValues;
      const float* from = p.group.products[0].x + long(row) * n_in + first;
      if (first + kValues <= n_in && reinterpret_cast<uintptr_t>(from) % 16 == 0) {
        LB_UNROLL
        for (int i = 0; i < kValues; i += 4) {
          const f32x4 v = load<f32x4>(from + i);
          LB_UNROLL
          for (int j = 0; j < 4; ++j) x[i + j] = v[j];
        }
      } else {
        LB_UNROLL
        for (int i = 0; i < kValues; ++i) x[i] = first + i < n_in ? from[i] : 0.0f;
      }
    }
  };

  LB_DEVICE static float dot(const Piece& piece, const X& x, int) {
    float even = 0, odd = 0;
    LB_UNROLL
    for (int i = 0; i < 4; ++i) {
      if constexpr (kType == DType::kF32) {
        (i % 2 ? odd : even) = fma(quant::float_of(piece[i]), x.x[i], i % 2 ? odd : even);
      } else {
        even = fma(low(piece[i]), x.x[2 * i], even);
        odd = fma(high(piece[i]), x.x[2 * i + 1], odd);
      }
    }
    return even + odd;
  }

 private:
  LB_DEVICE static float low(uint32_t pair) {
    return kType == DType::kF16 ? to_f32(f16{uint16_t(pair)}) : quant::float_of(pair << 16);
  }
  LB_DEVICE static float high(uint32_t pair) {
    return kType == DType::kF16 ? to_f32(f16{uint16_t(pair >> 16)}) : quant::float_of(pair & 0xffff0000u);
  }
};

}  // namespace lb::gpu
