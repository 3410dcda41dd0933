// Skinny GEMM formats of F16 and BF16 weights. x has the weights' type and stays unchanged in shared memory. From each
// k-block of 256 values a lane holds eight pieces of 8 values for each of two outputs, and multiplies them by the
// matching pieces of x. Once a piece is multiplied, the next unit's piece is loaded over it. Only RowCursor and Unit of
// a format (formats.h) exist here; `multiply` replaces Fields, Scales and expand.
#pragma once

#include "gpu/gemm_skinny/formats.h"

namespace lb::gpu {

template <DType kType_>
struct SkinnyPlain {
  static constexpr DType kType = kType_;

  struct RowCursor {
    const uint8_t* values;
    RowCursor() = default;
    LB_DEVICE RowCursor(const uint8_t* w, const quant::PlaneLayout& layout, uint32_t out, int k_block)
        : values(w + plane_offset(layout, 0, out) + k_block * (kSkinnyValues * 2) + lane() % 4 * 16) {}
    LB_DEVICE void next() { values += kSkinnyValues * 2; }
  };
  struct Unit {
    static constexpr int kPieces = kSkinnyValues / 32;
    u32x4 values[2][kPieces];  // [output, piece]
    LB_DEVICE void read(const RowCursor (&rows)[2]) {
      LB_UNROLL
      for (int piece = 0; piece < kPieces; ++piece) read(rows, piece);
    }
    LB_DEVICE void read(const RowCursor (&rows)[2], int piece) {
      LB_UNROLL
      for (int i = 0; i < 2; ++i) values[i][piece] = load_stream<u32x4>(rows[i].values + piece * 64);
    }
  };
  LB_DEVICE static void multiply(float (&sums)[4], const PairsA& a, uint32_t b0, uint32_t b1) {
    if constexpr (kType == DType::kBF16)
      multiply_bf16_pairs(sums, a, b0, b1);
    else
      multiply_pairs(sums, a, b0, b1);
  }
};

}  // namespace lb::gpu
