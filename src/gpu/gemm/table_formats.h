// GEMM formats (formats.h) of types that only the grouped products of experts read as stored: MXFP4, NVFP4, IQ4_NL and
// IQ4_XS, whose codes index a table; Q5_0, Q5_1 and Q5_K, with a plane of fifth bits; FP8.
#pragma once

#include "gpu/gemm/formats.h"
#include "gpu/nibble_table.h"
#include "gpu/plane_scales.h"

namespace lb::gpu {

// Table values as signed bytes.
template <DType kType>
LB_DEVICE void look_up_codes(ByteHalf (&a)[2], const CodeRows& rows, int block) {
  ByteHalf packed;
  load(packed, rows.plane[0] + block * 16, rows.stride[0]);
  LB_UNROLL
  for (int i = 0; i < int(sizeof(ByteHalf) / 4); ++i) {
    const Magnitudes found = look_up<kType>(packed.r[i]);
    u32x2 bytes;  // table values + 128, so that no borrow crosses a byte
    LB_UNROLL
    for (int j = 0; j < 2; ++j)
      bytes[j] = kHasFp4<kType> ? 0x80808080u + found.first[j] - found.second[j]
                                : 0x80808080u + found.second[j] - found.first[j];
    const u32x2 halves = lookup8_halves(bytes);
    a[0].r[i] = halves[0] ^ 0x80808080u;
    a[1].r[i] = halves[1] ^ 0x80808080u;
  }
}

struct GemmMXFP4 {
  static constexpr DType kType = DType::kMXFP4;
  static constexpr bool kHasMin = false, kHasHalves = false;
  template <int kBlocks>
  struct Scales {
    uint8_t e[kBlocks] = {};
    LB_DEVICE void read(const BlockPosition& at) {
      const uint8_t* from = plane_row(kType, at, 1) + at.block;
      LB_UNROLL
      for (int i = 0; i < kBlocks; ++i)
        e[i] = at.block + i < at.n_in / kRoundBlock ? load_cached<uint8_t>(from + i) : uint8_t(0);
    }
    LB_DEVICE f32x2 field(int i) const { return {quant::mxfp4_scale(e[i]), 0}; }
  };
  LB_DEVICE static void codes(ByteHalf (&a)[2], const CodeRows& rows, int block) {
    look_up_codes<kType>(a, rows, block);
  }
};

// Scales of 16 values; the last plane has the factor of the row.
struct GemmNVFP4 {
  static constexpr DType kType = DType::kNVFP4;
  static constexpr bool kHasMin = false, kHasHalves = true;
  template <int kBlocks>
  struct Scales {
    uint16_t pairs[kBlocks] = {};
    float factor = 0;
    LB_DEVICE void read(const BlockPosition& at) {
      const uint8_t* from = plane_row(kType, at, 1) + at.block * 2;
      LB_UNROLL
      for (int i = 0; i < kBlocks; ++i)
        pairs[i] = at.block + i < at.n_in / kRoundBlock ? load_cached<uint16_t>(from + 2 * i) : uint16_t(0);
      factor = load_cached<float>(plane_row(kType, at, 2));
    }
    LB_DEVICE f32x2 field(int i) const { return {scale(pairs[i]), scale(pairs[i] >> 8)}; }

   private:
    // Rounded to 21 bits, 2^-22 of a scale: see field 0 in formats.h. The table's values are doubled.
    LB_DEVICE float scale(uint32_t e4m3) const {
      const float exact = 0.5f * factor * from_e4m3(e4m3 & 0x7f);
      return quant::float_of((quant::bits_of(exact) + 4) & ~7u);
    }
  };
  LB_DEVICE static void codes(ByteHalf (&a)[2], const CodeRows& rows, int block) {
    look_up_codes<kType>(a, rows, block);
  }
};

struct GemmIQ4_NL {
  static constexpr DType kType = DType::kIQ4_NL;
  static constexpr bool kHasMin = false, kHasHalves = false;
  template <int kBlocks>
  using Scales = F16Scales<kType, kBlocks>;
  LB_DEVICE static void codes(ByteHalf (&a)[2], const CodeRows& rows, int block) {
    look_up_codes<kType>(a, rows, block);
  }
};

struct GemmIQ4_XS {
  static constexpr DType kType = DType::kIQ4_XS;
  static constexpr bool kHasMin = false, kHasHalves = false;
  template <int kBlocks>
  struct Scales {
    u32x2 entry = {};
    int block = 0;
    LB_DEVICE void read(const BlockPosition& at) {
      block = at.block % 8;
      entry =
          at.block < at.n_in / kRoundBlock ? load_cached<u32x2>(plane_row(kType, at, 1) + at.block / 8 * 8) : u32x2{};
    }
    LB_DEVICE f32x2 field(int i) const { return {block_scale(entry, block + i).scale, 0}; }
  };
  LB_DEVICE static void codes(ByteHalf (&a)[2], const CodeRows& rows, int block) {
    look_up_codes<kType>(a, rows, block);
  }
};

// Nibbles in plane 0, fifth bits in plane 1.
LB_DEVICE void unpack_five_bits(ByteHalf (&a)[2], const CodeRows& rows, int block) {
  unpack_nibbles(a, rows, block);
  OperandRows<uint32_t> upper;  // bit w of byte j belongs to value 4 w + j
  load(upper, rows.plane[1] + block * 4, rows.stride[1]);
  LB_UNROLL
  for (int half = 0; half < 2; ++half) {
    LB_UNROLL
    for (int i = 0; i < int(sizeof(ByteHalf) / 4); ++i)
      a[half].r[i] |= (upper.v[operand_row(i)] >> (4 * half + operand_word(i)) & 0x01010101u) << 4;
  }
}

struct GemmQ5_K {
  static constexpr DType kType = DType::kQ5_K;
  static constexpr bool kHasMin = true, kHasHalves = false;
  template <int kBlocks>
  using Scales = SixBitScales<kType, 2>;
  LB_DEVICE static void codes(ByteHalf (&a)[2], const CodeRows& rows, int block) { unpack_five_bits(a, rows, block); }
};

struct GemmQ5_0 {
  static constexpr DType kType = DType::kQ5_0;
  static constexpr bool kHasMin = false, kHasHalves = false;
  template <int kBlocks>
  using Scales = F16Scales<kType, kBlocks, 2>;
  LB_DEVICE static void codes(ByteHalf (&a)[2], const CodeRows& rows, int block) {
    unpack_five_bits(a, rows, block);
    subtract<16>(a[0]);
    subtract<16>(a[1]);
  }
};

struct GemmQ5_1 {
  static constexpr DType kType = DType::kQ5_1;
  static constexpr bool kHasMin = true, kHasHalves = false;
  template <int kBlocks>
  struct Scales {
    uint32_t d_m[kBlocks] = {};
    LB_DEVICE void read(const BlockPosition& at) {
      const uint8_t* from = plane_row(kType, at, 2) + at.block * 4;
      LB_UNROLL
      for (int i = 0; i < kBlocks; ++i)
        d_m[i] = at.block + i < at.n_in / kRoundBlock ? load_cached<uint32_t>(from + 4 * i) : 0u;
    }
    LB_DEVICE f32x2 field(int i) const {
      const quant::ScaleOffset block = block_scale(d_m[i], 0);
      return {block.scale, -block.offset};
    }
  };
  LB_DEVICE static void codes(ByteHalf (&a)[2], const CodeRows& rows, int block) { unpack_five_bits(a, rows, block); }
};

// Multiplied as 16-bit numbers (ExpandedHalves): the codes are e4m3, with a scale per 128 values.
struct GemmF8_E4M3 {
  static constexpr DType kType = DType::kF8_E4M3;
  static constexpr bool kHasHalves = false;
  template <int kBlocks>
  struct Scales {
    float scale = 0;
    LB_DEVICE void read(const BlockPosition& at) {
      static_assert(kBlocks <= 2);  // a chunk of 64 values is within one scale
      scale = at.block < at.n_in / kRoundBlock ? load_cached<float>(plane_row(kType, at, 1) + at.block / 4 * 4) : 0.0f;
    }
    LB_DEVICE f32x2 field(int) const { return {kE4m3Unit * scale, 0}; }
  };
  LB_DEVICE static void codes(ByteHalf (&a)[2], const CodeRows& rows, int block) {
    load(a, rows.plane[0] + block * 32, rows.stride[0]);
  }
  // Four codes as numbers, in units of kE4m3Unit.
  LB_DEVICE static f32x4 numbers(uint32_t word) {
    const uint32_t even = e4m3_pair(word, 0), odd = e4m3_pair(word, 1);
    const auto number = [](uint32_t bits) { return to_f32(f16{uint16_t(bits)}); };
    return {number(even), number(odd), number(even >> 16), number(odd >> 16)};
  }
};

}  // namespace lb::gpu
