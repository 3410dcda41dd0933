// GEMV formats of the weight types with one scale per block of 32 values: all quantised types except Q6_K, Q3_K and
// Q2_K.
#pragma once

#include "gpu/gemv/formats.h"
#include "gpu/nibble_table.h"
#include "gpu/plane_scales.h"

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

// Planes: nibbles in plane 0, fifth bits of five-bit types in plane 1, scales in the last.
template <DType kType>
LB_DEVICE auto block32_rows() {
  if constexpr (quant::plane_format(kType).n_planes == 3) {
    return PlaneRows<kType, 32, u32x4, uint32_t, ScaleEntry<kType>>{};
  } else {
    return PlaneRows<kType, 32, u32x4, ScaleEntry<kType>>{};
  }
}

// x in the order in which lookup8 returns values.
template <int kBits>
struct LookupX : RoundedX<32, kBits> {
  LB_DEVICE void read(const Gemv& p, int row, int piece) {
    RoundedX<32, kBits>::read(p, row, piece);
    LB_UNROLL
    for (int i = 0; i < 4; ++i) {
      reorder(this->high[i], this->high[4 + i]);
      if constexpr (kBits == 16) reorder(this->low[i], this->low[4 + i]);
    }
  }

 private:
  LB_DEVICE static void reorder(int& first, int& second) {
    const u32x2 words = lookup8_order(uint32_t(first), uint32_t(second));
    first = int(words[0]);
    second = int(words[1]);
  }
};

template <DType kType, int kBits>
LB_DEVICE auto block32_x() {
  if constexpr (kHasTable<kType>) {
    return LookupX<kBits>{};
  } else {
    return RoundedX<32, kBits>{};
  }
}

// Format of all these types except Q8_0: nibbles, with a fifth bit or a table of values if the type has one.
template <DType kType_, int kBits>
struct Block32Format {
  static constexpr DType kType = kType_;
  static constexpr int kValues = 32;
  using Rows = decltype(block32_rows<kType>());
  using Piece = typename Rows::Piece;
  using X = decltype(block32_x<kType, kBits>());

  LB_DEVICE static float dot(const Piece& piece, const X& x, int index) {
    const quant::ScaleOffset block = block_scale(part<Rows::kPlanes - 1>(piece), index % 8);
    const float products = x.scale * (kHasTable<kType> ? dot_table(piece, x) : dot_codes(piece, x));
    if constexpr (kHasOffsets<kType>) {
      return block.scale * products + block.offset * x.sum;
    } else {
      return block.scale * (products - kOffset * x.sum);
    }
  }

 private:
  static constexpr float kOffset = kType == DType::kQ4_0 ? 8 : kType == DType::kQ5_0 ? 16 : 0;  // subtracted from codes

  // The low nibbles of 16 bytes are the first half of a block, the high nibbles the second.
  LB_DEVICE static float dot_codes(const Piece& piece, const X& x) {
    uint32_t codes[8];
    LB_UNROLL
    for (int i = 0; i < 4; ++i) {
      codes[i] = part<0>(piece)[i] & 0x0f0f0f0fu;
      codes[4 + i] = part<0>(piece)[i] >> 4 & 0x0f0f0f0fu;
    }
    if constexpr (Rows::kPlanes == 3) {
      LB_UNROLL
      for (int i = 0; i < 8; ++i) codes[i] |= (part<1>(piece) >> i & 0x01010101u) << 4;
    }
    return x.dot(codes, 0);
  }

  // Sums the table's negative and positive values separately, as magnitudes.
  LB_DEVICE static float dot_table(const Piece& piece, const X& x) {
    uint32_t firsts[8], seconds[8];
    LB_UNROLL
    for (int i = 0; i < 4; ++i) {
      const Magnitudes looked = look_up<kType>(part<0>(piece)[i]);
      LB_UNROLL
      for (int half = 0; half < 2; ++half) {
        firsts[i + 4 * half] = looked.first[half];
        seconds[i + 4 * half] = looked.second[half];
      }
    }
    const float difference = x.dot(seconds, 0) - x.dot(firsts, 0);
    return kType == DType::kMXFP4 ? -difference : difference;
  }
};

// Four-bit codes and 8-bit x, for kernels that decode scales before x is ready. High nibbles are multiplied in place,
// so their products are 16 times too large. The low nibbles' sum is scaled up to match, and x's scale is divided by 16.
// Same bits as Block32Format.
template <DType kType_>
struct NibbleFormat {
  static constexpr DType kType = kType_;
  static_assert(quant::plane_format(kType).n_planes == 2 && kHasOffsets<kType>);
  static constexpr int kValues = 32;
  using Rows = typename Block32Format<kType, 8>::Rows;
  using Piece = typename Rows::Piece;
  using Scale = quant::ScaleOffset;

  struct X : RoundedX<32, 8> {
    LB_DEVICE void read(const Gemv& p, int row, int piece) {
      RoundedX<32, 8>::read(p, row, piece);
      scale *= 1 / 16.0f;
    }
  };

  LB_DEVICE static Scale scale_of(const Piece& piece, int index) { return block_scale(part<1>(piece), index % 8); }
  LB_DEVICE static float dot(const Piece& piece, const X& x, int index) {
    return dot(piece, scale_of(piece, index), x);
  }
  LB_DEVICE static float dot(const Piece& piece, const Scale& block, const X& x) {
    int first = 0, second = 0;
    LB_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint32_t codes = part<0>(piece)[i];
      first = dot4(int(codes & 0x0f0f0f0fu), x.high[i], first);
      second = dot4_unsigned(codes & 0xf0f0f0f0u, x.high[4 + i], second);
    }
    return block.scale * (x.scale * float(16 * first + second)) + block.offset * x.sum;
  }
};

}  // namespace lb::gpu
