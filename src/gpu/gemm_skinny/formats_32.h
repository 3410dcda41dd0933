// Skinny GEMM formats of the weight types with blocks of 32 values; a k-block is eight such blocks. Operands are code
// times scale, rounded to 11 bits, in units of one power of two per k-block.
#pragma once

#include "gpu/gemm_skinny/formats.h"
#include "gpu/gemm_skinny/table_formats.h"
#include "gpu/plane_scales.h"

namespace lb::gpu {

// The scales (or offsets) of blocks t and t + 4 of an output. All eight blocks use one unit, in which their largest
// scale is 8 to 16.
struct SkinnyBlockScales {
  float unit;
  f16x2 of_blocks;
  SkinnyBlockScales() = default;
  LB_DEVICE SkinnyBlockScales(f16 first, f16 second) {
    int largest = max(first.bits & 0x7fff, second.bits & 0x7fff);
    LB_UNROLL
    for (int mask = 1; mask < 4; mask *= 2) largest = max(largest, shuffle_xor(largest, mask));
    const int exponent = max(largest >> 10, 3);  // exponent of the f16; the smallest scales end below 8
    unit = quant::float_of(uint32_t(exponent - 18 + 127) << 23);
    of_blocks = times(pair_of(first.bits | uint32_t(second.bits) << 16), twice(uint32_t(33 - exponent) << 10));
  }
  // MXFP4: scales are powers of two (quant::mxfp4_scale); the unit is the largest.
  LB_DEVICE SkinnyBlockScales(uint8_t first, uint8_t second) {
    int largest = max(int(first), int(second));
    LB_UNROLL
    for (int mask = 1; mask < 4; mask *= 2) largest = max(largest, shuffle_xor(largest, mask));
    unit = quant::mxfp4_scale(uint8_t(largest));
    const auto power = [&](int e) {
      return uint32_t(to_f16(quant::float_of(uint32_t(max(127 - largest + e, 0)) << 23)).bits);
    };
    of_blocks = pair_of(power(first) | power(second) << 16);
  }
};

// The scale of a part's block for each output, in both halves of a word.
struct SkinnyPartScales {
  uint32_t of_part[2];
  template <class Fields>
  LB_DEVICE SkinnyPartScales(const Fields& fields, int part) {
    LB_UNROLL
    for (int i = 0; i < 2; ++i) {
      const uint32_t pair = pair_bits(fields.scales[i].of_blocks);
      of_part[i] = permute_bytes(pair, pair, part ? 0x3232 : 0x1010);
    }
  }
};

struct SkinnyQ8_0 {
  static constexpr DType kType = DType::kQ8_0;
  static constexpr bool kHasMin = false;

  struct RowCursor {
    const uint8_t* codes;
    uint32_t d;  // byte offset from codes; matrices are smaller than 4 GiB
    RowCursor() = default;
    LB_DEVICE RowCursor(const uint8_t* w, const quant::PlaneLayout& layout, uint32_t out, int k_block) {
      const uint64_t first = plane_offset(layout, 0, out) + k_block * 256 + lane() % 4 * 32;
      codes = w + first;
      d = uint32_t(plane_offset(layout, 1, out) + k_block * 16 + lane() % 4 * 2 - first);
    }
    LB_DEVICE void next() {
      codes += 256;
      d -= 256 - 16;
    }
  };
  struct Unit {
    u32x4 codes[2][2][2];  // [output, part, half of the block]
    uint16_t d[2][2];
    LB_DEVICE void read(const RowCursor (&rows)[2]) {
      LB_UNROLL
      for (int i = 0; i < 2; ++i) {
        LB_UNROLL
        for (int part = 0; part < 2; ++part) {
          LB_UNROLL
          for (int half = 0; half < 2; ++half)
            codes[i][part][half] = load_stream<u32x4>(rows[i].codes + part * 128 + half * 16);
          d[i][part] = load_cached<uint16_t>(rows[i].codes + rows[i].d + part * 8);
        }
      }
    }
  };
  struct Fields {
    SkinnyBlockScales scales[2];
    LB_DEVICE explicit Fields(const Unit& unit)
        : scales{SkinnyBlockScales(f16{unit.d[0][0]}, f16{unit.d[0][1]}),
                 SkinnyBlockScales(f16{unit.d[1][0]}, f16{unit.d[1][1]})} {}
    LB_DEVICE float scale(int i) const { return scales[i].unit; }
  };
  using Scales = SkinnyPartScales;
  LB_DEVICE static void expand(PairsA (&a)[2], const Unit& unit, const Scales& scales, int part, int word) {
    LB_UNROLL
    for (int i = 0; i < 2; ++i) {
      LB_UNROLL
      for (int half = 0; half < 2; ++half) {
        const uint32_t bytes = unit.codes[i][part][half][word] ^ 0x80808080u;
        LB_UNROLL
        for (int odd = 0; odd < 2; ++odd)
          a[half].r[2 * odd + i] = pair_bits(times(code_pair(bytes, odd), scales.of_part[i]));
      }
    }
  }
};

// Nibbles, with a fifth bit in some types. plane_scales.h describes the last plane.
template <DType kType_>
struct SkinnyNibbles {
  static constexpr DType kType = kType_;
  static constexpr bool kHasMin = kHasOffsets<kType>;
  static constexpr bool kHasFifth = kType == DType::kQ5_0 || kType == DType::kQ5_1;
  static constexpr uint32_t kOffset = kType == DType::kQ4_0   ? 8
                                      : kType == DType::kQ5_0 ? 16
                                                              : 0;  // subtracted from codes
  using Entry = ScaleEntry<kType>;

  struct RowCursor {
    const uint8_t* codes;
    uint32_t upper, scales;  // byte offsets from codes; matrices are smaller than 4 GiB
    RowCursor() = default;
    LB_DEVICE RowCursor(const uint8_t* w, const quant::PlaneLayout& layout, uint32_t out, int k_block) {
      const uint64_t first = plane_offset(layout, 0, out) + k_block * 128 + lane() % 4 * 16;
      codes = w + first;
      upper = kHasFifth ? uint32_t(plane_offset(layout, 1, out) + k_block * 32 + lane() % 4 * 4 - first) : 0;
      scales =
          uint32_t(plane_offset(layout, kHasFifth ? 2 : 1, out) + (k_block * 8 + lane() % 4) * sizeof(Entry) - first);
    }
    LB_DEVICE void next() {
      codes += 128;
      upper -= 128 - 32;
      scales -= 128 - 8 * sizeof(Entry);
    }
  };
  struct Unit {
    u32x4 codes[2][2];  // [output, part]
    uint32_t upper[2][2];
    Entry scales[2][2];
    LB_DEVICE void read(const RowCursor (&rows)[2]) {
      LB_UNROLL
      for (int i = 0; i < 2; ++i) {
        LB_UNROLL
        for (int part = 0; part < 2; ++part) {
          codes[i][part] = load_stream<u32x4>(rows[i].codes + part * 64);
          if constexpr (kHasFifth) upper[i][part] = load_stream<uint32_t>(rows[i].codes + rows[i].upper + part * 16);
          scales[i][part] = load_cached<Entry>(rows[i].codes + rows[i].scales + part * 4 * sizeof(Entry));
        }
      }
    }
  };
  struct Fields {
    SkinnyBlockScales scales[2], offsets[2];
    LB_DEVICE explicit Fields(const Unit& unit) {
      LB_UNROLL
      for (int i = 0; i < 2; ++i) {
        const auto& [first, second] = unit.scales[i];
        if constexpr (kHasMin) {
          scales[i] = SkinnyBlockScales(f16{uint16_t(first)}, f16{uint16_t(second)});
          offsets[i] = SkinnyBlockScales(f16{uint16_t(first >> 16)}, f16{uint16_t(second >> 16)});
        } else {
          scales[i] = SkinnyBlockScales(first, second);
        }
      }
    }
    LB_DEVICE float scale(int i) const { return scales[i].unit; }
    LB_DEVICE float min(int i) const { return -offsets[i].unit; }
    LB_DEVICE PairsA mins() const {  // called twice: for the high f16 of the sums, then for their rest
      const uint32_t a = pair_bits(offsets[0].of_blocks), b = pair_bits(offsets[1].of_blocks);
      return {{a, b, a, b}};
    }
  };
  using Scales = SkinnyPartScales;
  LB_DEVICE static void expand(PairsA (&a)[2], const Unit& unit, const Scales& scales, int part, int word) {
    LB_UNROLL
    for (int i = 0; i < 2; ++i) {
      const uint32_t codes = unit.codes[i][part][word];
      if constexpr (kHasTable<kType>) {
        expand_table_codes<kType>(a, i, codes, scales.of_part[i]);
      } else {
        LB_UNROLL
        for (int odd = 0; odd < 2; ++odd) {
          uint32_t low = twice(0x6400), high = low;  // f16 of 1024 + code and of 1024 + 16 * code
          if constexpr (kHasFifth) {
            const uint32_t upper = unit.upper[i][part] >> (8 * odd + word) << 4;
            low = masked_or(upper, twice(0x10), low);
            high = masked_or(upper, twice(0x100), high);
          }
          low = masked_or(codes >> 8 * odd, twice(0x0f), low);
          high = masked_or(codes >> 8 * odd, twice(0xf0), high);
          const f16x2 first = fma2(pair_of(low), pair_of(twice(0x3c00)), pair_of(twice(0xe400 + kOffset)));
          const f16x2 second = fma2(pair_of(high), pair_of(twice(0x2c00)), pair_of(twice(0xd400 + 16 * kOffset)));
          a[0].r[2 * odd + i] = pair_bits(times(first, scales.of_part[i]));
          a[1].r[2 * odd + i] = pair_bits(times(second, scales.of_part[i]));
        }
      }
    }
  }
};

}  // namespace lb::gpu
