// GEMM formats (formats.h) of types that only the grouped products of experts read as stored: MXFP4 and IQ4_XS, whose
// codes index a table, and Q5_K.
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

struct GemmQ5_K {
  static constexpr DType kType = DType::kQ5_K;
  static constexpr bool kHasMin = true, kHasHalves = false;
  template <int kBlocks>
  using Scales = SixBitScales<kType, 2>;
  LB_DEVICE static void codes(ByteHalf (&a)[2], const CodeRows& rows, int block) {
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
};

}  // namespace lb::gpu
