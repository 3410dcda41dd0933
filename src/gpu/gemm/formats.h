// How the GEMMs of gemm.h read a quantised weight type from planes (quant/planes.h). A format has
//   kType       the weight type
//   kHasMin     field 1 of a block of 32 values is a min: w = field 0 * code - field 1
//   kHasHalves  the two fields are the scales of the block's halves of 16 values
//   codes       the codes of a block as signed bytes, for 16 outputs and the two halves, from a chunk in shared memory
//   Scales<n>   the scales of n consecutive blocks of an output: read loads them, field(i) decodes block i's
// Field 0 has at most 21 significant bits, so its product with 1.5 * 2^23 is exact (ByteProduct in products.h).
#pragma once

#include "gpu/gemm/shape.h"

namespace lb::gpu {

// The codes of 16 outputs in a chunk in shared memory, by plane.
struct CodeRows {
  const uint8_t* plane[2];
  int stride[2];
};

// A block of 32 values of an output.
struct BlockPosition {
  const void* w;
  int n_out, n_in, out, block;
};
LB_DEVICE const uint8_t* plane_row(DType type, const BlockPosition& at, int i) {
  const quant::PlaneLayout layout = quant::plane_layout(type, at.n_out, at.n_in);
  return static_cast<const uint8_t*>(at.w) + layout.offset[i] + size_t(at.out) * layout.row_bytes[i];
}

// Unpacks nibbles: the low nibbles of 16 bytes are the first half of a block, the high nibbles the second.
LB_DEVICE void unpack_nibbles(ByteHalf (&a)[2], const CodeRows& rows, int block) {
  ByteHalf packed;
  load(packed, rows.plane[0] + block * 16, rows.stride[0]);
  LB_UNROLL
  for (int i = 0; i < int(sizeof(ByteHalf) / 4); ++i) {
    a[0].r[i] = packed.r[i] & 0x0f0f0f0fu;
    a[1].r[i] = packed.r[i] >> 4 & 0x0f0f0f0fu;
  }
}

// Subtracts n from bytes below 128 - n and gives signed bytes. No carry crosses a byte.
template <int n>
LB_DEVICE void subtract(ByteHalf& half) {
  LB_UNROLL
  for (int i = 0; i < int(sizeof(ByteHalf) / 4); ++i) half.r[i] = (half.r[i] + (128 - n) * 0x01010101u) ^ 0x80808080u;
}

// One f16 per block, in plane kPlane.
template <DType kType, int kBlocks, int kPlane = 1>
struct F16Scales {
  f16 d[kBlocks] = {};
  LB_DEVICE void read(const BlockPosition& at) {
    const uint8_t* from = plane_row(kType, at, kPlane) + at.block * 2;
    LB_UNROLL
    for (int i = 0; i < kBlocks; ++i)
      d[i] = at.block + i < at.n_in / kRoundBlock ? load_cached<f16>(from + 2 * i) : f16{};
  }
  LB_DEVICE f32x2 field(int i) const { return {to_f32(d[i]), 0}; }
};

struct GemmQ8_0 {
  static constexpr DType kType = DType::kQ8_0;
  static constexpr bool kHasMin = false, kHasHalves = false;
  template <int kBlocks>
  using Scales = F16Scales<kType, kBlocks>;
  LB_DEVICE static void codes(ByteHalf (&a)[2], const CodeRows& rows, int block) {
    load(a, rows.plane[0] + block * 32, rows.stride[0]);
  }
};

struct GemmQ4_0 {
  static constexpr DType kType = DType::kQ4_0;
  static constexpr bool kHasMin = false, kHasHalves = false;
  template <int kBlocks>
  using Scales = F16Scales<kType, kBlocks>;
  LB_DEVICE static void codes(ByteHalf (&a)[2], const CodeRows& rows, int block) {
    unpack_nibbles(a, rows, block);
    subtract<8>(a[0]);
    subtract<8>(a[1]);
  }
};

// The scales and mins of Q4_K and Q5_K, six bits each, in plane kPlane.
template <DType kType, int kPlane>
struct SixBitScales {
  u32x4 entry = {};
  int block = 0;
  LB_DEVICE void read(const BlockPosition& at) {
    block = at.block % 8;
    entry = at.block < at.n_in / kRoundBlock ? load_cached<u32x4>(plane_row(kType, at, kPlane) + at.block / 8 * 16)
                                             : u32x4{};
  }
  LB_DEVICE f32x2 field(int i) const {
    const uint32_t fields = quant::k4_fields(entry.v, block + i);
    const float d = to_f32(f16{uint16_t(entry[0])}), dmin = to_f32(f16{uint16_t(entry[0] >> 16)});
    return {d * float(fields & 63), dmin * float(fields >> 6)};
  }
};

struct GemmQ4_K {
  static constexpr DType kType = DType::kQ4_K;
  static constexpr bool kHasMin = true, kHasHalves = false;
  template <int kBlocks>
  using Scales = SixBitScales<kType, 1>;
  LB_DEVICE static void codes(ByteHalf (&a)[2], const CodeRows& rows, int block) { unpack_nibbles(a, rows, block); }
};

struct GemmQ6_K {
  static constexpr DType kType = DType::kQ6_K;
  static constexpr bool kHasMin = false, kHasHalves = true;
  template <int kBlocks>
  struct Scales {
    uint16_t pairs[kBlocks] = {};  // pairs of signed bytes
    f16 d = {};
    LB_DEVICE void read(const BlockPosition& at) {
      const bool is_inside = at.block < at.n_in / kRoundBlock;
      const uint8_t* from = plane_row(kType, at, 2) + at.block * 2;
      LB_UNROLL
      for (int i = 0; i < kBlocks; ++i) pairs[i] = is_inside ? load_cached<uint16_t>(from + 2 * i) : uint16_t(0);
      d = is_inside ? load_cached<f16>(plane_row(kType, at, 3) + at.block / 8 * 2) : f16{};
    }
    LB_DEVICE f32x2 field(int i) const {
      return {to_f32(d) * float(int8_t(pairs[i])), to_f32(d) * float(int8_t(pairs[i] >> 8))};
    }
  };
  LB_DEVICE static void codes(ByteHalf (&a)[2], const CodeRows& rows, int block) {
    unpack_nibbles(a, rows, block);
    OperandRows<u32x2> upper;  // one word per half; two bits for each of the half's four-byte words
    load(upper, rows.plane[1] + block * 8, rows.stride[1]);
    LB_UNROLL
    for (int half = 0; half < 2; ++half) {
      LB_UNROLL
      for (int i = 0; i < int(sizeof(ByteHalf) / 4); ++i)
        a[half].r[i] |= (upper.v[operand_row(i)][half] >> 2 * operand_word(i) & 0x03030303u) << 4;
      subtract<32>(a[half]);
    }
  }
};

}  // namespace lb::gpu
