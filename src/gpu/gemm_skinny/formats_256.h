// Skinny GEMM formats of the weight types with superblocks of 256 values. Operands are integers, code times scale. f16
// holds integers up to 2048 exactly.
#pragma once

#include "gpu/gemm_skinny/formats.h"
#include "gpu/gemm_skinny/table_formats.h"

namespace lb::gpu {

// Cursor of the types with two planes: nibbles, and one entry of scales per superblock.
template <class Entry>
struct SkinnyNibbleCursor {
  const uint8_t *codes, *scales;
  SkinnyNibbleCursor() = default;
  LB_DEVICE SkinnyNibbleCursor(const uint8_t* w, const quant::PlaneLayout& layout, uint32_t out, int k_block)
      : codes(w + plane_offset(layout, 0, out) + k_block * 128 + lane() % 4 * 16),
        scales(w + plane_offset(layout, 1, out) + k_block * int(sizeof(Entry))) {}
  LB_DEVICE void next() {
    codes += 128;
    scales += sizeof(Entry);
  }
};
template <class Entry>
struct SkinnyNibbleUnit {
  u32x4 codes[2][2];  // [output, part]
  Entry scales[2];
  LB_DEVICE void read(const SkinnyNibbleCursor<Entry> (&rows)[2]) {
    LB_UNROLL
    for (int i = 0; i < 2; ++i) {
      codes[i][0] = load_stream<u32x4>(rows[i].codes);
      codes[i][1] = load_stream<u32x4>(rows[i].codes + 64);
      scales[i] = load_cached<Entry>(rows[i].scales);
    }
  }
};

struct SkinnyQ4_K {
  static constexpr DType kType = DType::kQ4_K;
  static constexpr bool kHasMin = true;

  using RowCursor = SkinnyNibbleCursor<u32x4>;
  using Unit = SkinnyNibbleUnit<u32x4>;
  struct Fields {
    uint32_t d[2];
    f16x2 scales[2], min_fields[2];  // scales and mins of blocks t and t + 4
    template <class AnyUnit>
    LB_DEVICE explicit Fields(const AnyUnit& unit) {
      const int t = lane() % 4;
      LB_UNROLL
      for (int i = 0; i < 2; ++i) {
        const u32x4& words = unit.scales[i];
        d[i] = words[0];
        const uint32_t first = bits_from(t < 3 ? words[1] : words[2], words[2], 12 * t);
        const uint32_t second = bits_from(t < 2 ? words[2] : words[3], words[3], 12 * t + 16);
        const uint32_t both = (first & 0xfff) | second << 16;
        scales[i] = small_pair<0>(both & 0x003f003fu);
        min_fields[i] = small_pair<0>(both >> 6 & 0x003f003fu);
      }
    }
    LB_DEVICE float scale(int i) const { return to_f32(f16{uint16_t(d[i])}); }
    LB_DEVICE float min(int i) const { return to_f32(f16{uint16_t(d[i] >> 16)}); }
    LB_DEVICE PairsA mins() const {  // called twice: for the high f16 of the sums, then for their rest
      const uint32_t a = pair_bits(min_fields[0]), b = pair_bits(min_fields[1]);
      return {{a, b, a, b}};
    }

   private:
    LB_DEVICE static uint32_t bits_from(uint32_t low, uint32_t high, int bit) {
      return uint32_t((uint64_t(high) << 32 | low) >> (bit & 31));
    }
  };
  // Masks leave 1024 + code and 1024 + 16 * code as f16; these become code * scale.
  struct Scales {
    f16x2 low[2], low_off[2], high[2], high_off[2];
    LB_DEVICE Scales(const Fields& fields, int part) {
      LB_UNROLL
      for (int i = 0; i < 2; ++i) {
        const uint32_t pair = pair_bits(fields.scales[i]);
        low[i] = pair_of(permute_bytes(pair, pair, part ? 0x3232 : 0x1010));
        low_off[i] = times(low[i], 0xe400e400u);   // -1024
        high[i] = times(low[i], 0x2c002c00u);      // 1 / 16
        high_off[i] = times(low[i], 0xd400d400u);  // -64
      }
    }
  };
  LB_DEVICE static void expand(PairsA (&a)[2], const Unit& unit, const Scales& scales, int part, int word) {
    LB_UNROLL
    for (int i = 0; i < 2; ++i) {
      const uint32_t even = unit.codes[i][part][word], odd = even >> 8;
      a[0].r[i] = scaled(masked_or(even, 0x000f000fu, 0x64006400u), scales.low[i], scales.low_off[i]);
      a[0].r[2 + i] = scaled(masked_or(odd, 0x000f000fu, 0x64006400u), scales.low[i], scales.low_off[i]);
      a[1].r[i] = scaled(masked_or(even, 0x00f000f0u, 0x64006400u), scales.high[i], scales.high_off[i]);
      a[1].r[2 + i] = scaled(masked_or(odd, 0x00f000f0u, 0x64006400u), scales.high[i], scales.high_off[i]);
    }
  }
};

// Q4_K's scales and mins plus a fifth bit per code. Products are at most 31 * 63, which f16 holds exactly.
struct SkinnyQ5_K {
  static constexpr DType kType = DType::kQ5_K;
  static constexpr bool kHasMin = true;
  using Fields = SkinnyQ4_K::Fields;
  using Scales = SkinnyQ4_K::Scales;

  struct RowCursor {
    const uint8_t* codes;
    uint32_t upper, scales;  // byte offsets from codes; matrices are smaller than 4 GiB
    RowCursor() = default;
    LB_DEVICE RowCursor(const uint8_t* w, const quant::PlaneLayout& layout, uint32_t out, int k_block) {
      const uint64_t first = plane_offset(layout, 0, out) + k_block * 128 + lane() % 4 * 16;
      codes = w + first;
      upper = uint32_t(plane_offset(layout, 1, out) + k_block * 32 + lane() % 4 * 4 - first);
      scales = uint32_t(plane_offset(layout, 2, out) + k_block * 16 - first);
    }
    LB_DEVICE void next() {
      codes += 128;
      upper -= 128 - 32;
      scales -= 128 - 16;
    }
  };
  struct Unit {
    u32x4 codes[2][2];  // [output, part]
    uint32_t upper[2][2];
    u32x4 scales[2];
    LB_DEVICE void read(const RowCursor (&rows)[2]) {
      LB_UNROLL
      for (int i = 0; i < 2; ++i) {
        LB_UNROLL
        for (int part = 0; part < 2; ++part) {
          codes[i][part] = load_stream<u32x4>(rows[i].codes + part * 64);
          upper[i][part] = load_stream<uint32_t>(rows[i].codes + rows[i].upper + part * 16);
        }
        scales[i] = load_cached<u32x4>(rows[i].codes + rows[i].scales);
      }
    }
  };
  LB_DEVICE static void expand(PairsA (&a)[2], const Unit& unit, const Scales& scales, int part, int word) {
    LB_UNROLL
    for (int i = 0; i < 2; ++i) {
      LB_UNROLL
      for (int odd = 0; odd < 2; ++odd) {
        const uint32_t codes = unit.codes[i][part][word] >> 8 * odd, upper = unit.upper[i][part] >> (8 * odd + word);
        const uint32_t low = masked_or(codes, 0x000f000fu, masked_or(upper << 4, 0x00100010u, 0x64006400u));
        const uint32_t high = masked_or(codes, 0x00f000f0u, masked_or(upper << 4, 0x01000100u, 0x64006400u));
        a[0].r[2 * odd + i] = scaled(low, scales.low[i], scales.low_off[i]);
        a[1].r[2 * odd + i] = scaled(high, scales.high[i], scales.high_off[i]);
      }
    }
  }
};

// Six-bit codes minus 32, an 8-bit scale per 16 values. Products reach 4096 and are rounded to 11 bits.
struct SkinnyQ6_K {
  static constexpr DType kType = DType::kQ6_K;
  static constexpr bool kHasMin = false;

  struct RowCursor {
    const uint8_t* codes;
    uint32_t upper, scales, d;  // byte offsets from codes; matrices are smaller than 4 GiB
    RowCursor() = default;
    LB_DEVICE RowCursor(const uint8_t* w, const quant::PlaneLayout& layout, uint32_t out, int k_block) {
      const uint64_t first = plane_offset(layout, 0, out) + k_block * 128 + lane() % 4 * 16;
      codes = w + first;
      upper = uint32_t(plane_offset(layout, 1, out) + k_block * 64 + lane() % 4 * 8 - first);
      scales = uint32_t(plane_offset(layout, 2, out) + k_block * 16 + lane() % 4 * 2 - first);
      d = uint32_t(plane_offset(layout, 3, out) + k_block * 2 - first);
    }
    LB_DEVICE void next() {
      codes += 128;
      upper -= 128 - 64;
      scales -= 128 - 16;
      d -= 128 - 2;
    }
  };
  struct Unit {
    u32x4 codes[2][2];  // [output, part]
    u32x2 upper[2][2];
    uint16_t scales[2][2];
    f16 d[2];
    LB_DEVICE void read(const RowCursor (&rows)[2]) {
      LB_UNROLL
      for (int i = 0; i < 2; ++i) {
        LB_UNROLL
        for (int part = 0; part < 2; ++part) {
          codes[i][part] = load_stream<u32x4>(rows[i].codes + part * 64);
          upper[i][part] = load_stream<u32x2>(rows[i].codes + rows[i].upper + part * 32);
          scales[i][part] = load_cached<uint16_t>(rows[i].codes + rows[i].scales + part * 8);
        }
        d[i] = load_cached<f16>(rows[i].codes + rows[i].d);
      }
    }
  };
  struct Fields {
    uint32_t scales[2];  // scale + 128, one byte per block half, for both parts
    float d[2];
    LB_DEVICE explicit Fields(const Unit& unit) {
      LB_UNROLL
      for (int i = 0; i < 2; ++i) {
        scales[i] = (unit.scales[i][0] | uint32_t(unit.scales[i][1]) << 16) ^ 0x80808080u;
        d[i] = to_f32(unit.d[i]);
      }
    }
    LB_DEVICE float scale(int i) const { return d[i]; }
  };
  // 64 + code, an f16 with the code in bits 4..9, becomes (code - 32) * scale.
  struct Scales {
    f16x2 scale[2][2], off[2][2];  // [output, half of the block]
    LB_DEVICE Scales(const Fields& fields, int part) {
      LB_UNROLL
      for (int i = 0; i < 2; ++i) {
        LB_UNROLL
        for (int half = 0; half < 2; ++half) {
          scale[i][half] = small_pair<128>(permute_bytes(fields.scales[i], 0, 0x4040 + (2 * part + half) * 0x101));
          off[i][half] = times(scale[i][half], 0xd600d600u);  // -96
        }
      }
    }
  };
  LB_DEVICE static void expand(PairsA (&a)[2], const Unit& unit, const Scales& scales, int part, int word) {
    LB_UNROLL
    for (int i = 0; i < 2; ++i) {
      const uint32_t codes = unit.codes[i][part][word];
      LB_UNROLL
      for (int half = 0; half < 2; ++half) {
        const uint32_t low = half ? codes : codes << 4, upper = unit.upper[i][part][half] >> 2 * word;
        LB_UNROLL
        for (int odd = 0; odd < 2; ++odd) {
          const uint32_t bits =
              masked_or(low >> 8 * odd, 0x00f000f0u, masked_or(odd ? upper : upper << 8, 0x03000300u, 0x54005400u));
          a[half].r[2 * odd + i] = scaled(bits, scales.scale[i][half], scales.off[i][half]);
        }
      }
    }
  }
};

// The field d of the types with six-bit scales, which are multiples of d.
template <class Unit>
struct SkinnySixBitFields {
  const Unit& unit;
  float d[2];
  LB_DEVICE explicit SkinnySixBitFields(const Unit& unit_) : unit(unit_) {
    LB_UNROLL
    for (int i = 0; i < 2; ++i) d[i] = to_f32(f16{quant::six_bit_d(unit.scales[i][0], unit.scales[i][1])});
  }
  LB_DEVICE float scale(int i) const { return d[i]; }
};

// Three-bit codes minus 4, a 6-bit scale per 16 values. Products are at most 4 * 32, which f16 holds exactly.
struct SkinnyQ3_K {
  static constexpr DType kType = DType::kQ3_K;
  static constexpr bool kHasMin = false;

  struct RowCursor {
    const uint8_t* codes;
    uint32_t upper, scales;  // byte offsets from codes; matrices are smaller than 4 GiB
    RowCursor() = default;
    LB_DEVICE RowCursor(const uint8_t* w, const quant::PlaneLayout& layout, uint32_t out, int k_block) {
      const uint64_t first = plane_offset(layout, 0, out) + k_block * 64 + lane() % 4 * 8;
      codes = w + first;
      upper = uint32_t(plane_offset(layout, 1, out) + k_block * 32 + lane() % 4 * 4 - first);
      scales = uint32_t(plane_offset(layout, 2, out) + k_block * 16 - first);
    }
    LB_DEVICE void next() {
      codes += 64;
      upper -= 64 - 32;
      scales -= 64 - 16;
    }
  };
  struct Unit {
    u32x2 codes[2][2];  // [output, part], one word per half of the block
    uint32_t upper[2][2];
    u32x4 scales[2];
    LB_DEVICE void read(const RowCursor (&rows)[2]) {
      LB_UNROLL
      for (int i = 0; i < 2; ++i) {
        LB_UNROLL
        for (int part = 0; part < 2; ++part) {
          codes[i][part] = load_stream<u32x2>(rows[i].codes + part * 32);
          upper[i][part] = load_stream<uint32_t>(rows[i].codes + rows[i].upper + part * 16);
        }
        scales[i] = load_cached<u32x4>(rows[i].codes + rows[i].scales);
      }
    }
  };
  using Fields = SkinnySixBitFields<Unit>;
  // 64 + code, an f16 with the code in bits 4..6, becomes (code - 4) * scale.
  struct Scales {
    f16x2 scale[2][2], off[2][2];  // [output, half of the block]
    LB_DEVICE Scales(const Fields& fields, int part) {
      const int t = lane() % 4;
      LB_UNROLL
      for (int i = 0; i < 2; ++i) {
        const u32x4& words = fields.unit.scales[i];
        const uint32_t both = (t < 2 ? words[2 * part] : words[2 * part + 1]) >> 12 * (t % 2);
        LB_UNROLL
        for (int half = 0; half < 2; ++half) {
          scale[i][half] = small_pair<32>((both >> 6 * half & 63) * 0x10001u);
          off[i][half] = times(scale[i][half], twice(0xd440));  // -68
        }
      }
    }
  };
  LB_DEVICE static void expand(PairsA (&a)[2], const Unit& unit, const Scales& scales, int part, int word) {
    LB_UNROLL
    for (int i = 0; i < 2; ++i) {
      LB_UNROLL
      for (int half = 0; half < 2; ++half) {
        const uint32_t low = unit.codes[i][part][half] >> 2 * word, upper = unit.upper[i][part] >> (4 * half + word);
        LB_UNROLL
        for (int odd = 0; odd < 2; ++odd) {
          const uint32_t bits = masked_or(odd ? low >> 4 : low << 4, twice(0x30),
                                          masked_or(odd ? upper >> 2 : upper << 6, twice(0x40), twice(0x5400)));
          a[half].r[2 * odd + i] = scaled(bits, scales.scale[i][half], scales.off[i][half]);
        }
      }
    }
  }
};

// Two-bit codes, a 4-bit scale and a 4-bit min per 16 values. Products are at most 3 * 15.
struct SkinnyQ2_K {
  static constexpr DType kType = DType::kQ2_K;
  static constexpr bool kHasMin = true;

  struct RowCursor {
    const uint8_t* codes;
    uint32_t scales, d;  // byte offsets from codes; matrices are smaller than 4 GiB
    RowCursor() = default;
    LB_DEVICE RowCursor(const uint8_t* w, const quant::PlaneLayout& layout, uint32_t out, int k_block) {
      const uint64_t first = plane_offset(layout, 0, out) + k_block * 64 + lane() % 4 * 8;
      codes = w + first;
      scales = uint32_t(plane_offset(layout, 1, out) + k_block * 16 + lane() % 4 * 2 - first);
      d = uint32_t(plane_offset(layout, 2, out) + k_block * 4 - first);
    }
    LB_DEVICE void next() {
      codes += 64;
      scales -= 64 - 16;
      d -= 64 - 4;
    }
  };
  struct Unit {
    u32x2 codes[2][2];  // [output, part], one word per half of the block
    uint16_t scales[2][2];
    uint32_t d[2];  // d and dmin
    LB_DEVICE void read(const RowCursor (&rows)[2]) {
      LB_UNROLL
      for (int i = 0; i < 2; ++i) {
        LB_UNROLL
        for (int part = 0; part < 2; ++part) {
          codes[i][part] = load_stream<u32x2>(rows[i].codes + part * 32);
          scales[i][part] = load_cached<uint16_t>(rows[i].codes + rows[i].scales + part * 8);
        }
        d[i] = load_cached<uint32_t>(rows[i].codes + rows[i].d);
      }
    }
  };
  struct Fields {
    uint32_t scales[2], d[2];
    LB_DEVICE explicit Fields(const Unit& unit) {
      LB_UNROLL
      for (int i = 0; i < 2; ++i) {
        scales[i] = unit.scales[i][0] | uint32_t(unit.scales[i][1]) << 16;
        d[i] = unit.d[i];
      }
    }
    LB_DEVICE float scale(int i) const { return to_f32(f16{uint16_t(d[i])}); }
    LB_DEVICE float min(int i) const { return to_f32(f16{uint16_t(d[i] >> 16)}); }
  };
  // 1024 + code becomes code * scale.
  struct Scales {
    f16x2 scale[2][2], off[2][2];  // [output, half of the block]
    uint32_t min_fields[2][2];
    LB_DEVICE Scales(const Fields& fields, int part) {
      LB_UNROLL
      for (int i = 0; i < 2; ++i) {
        LB_UNROLL
        for (int half = 0; half < 2; ++half) {
          const uint32_t both = permute_bytes(fields.scales[i], 0, 0x4040 + (2 * part + half) * 0x101);
          scale[i][half] = small_pair<0>(both & twice(15));
          off[i][half] = times(scale[i][half], twice(0xe400));  // -1024
          min_fields[i][half] = pair_bits(small_pair<0>(both >> 4 & twice(15)));
        }
      }
    }
    LB_DEVICE PairsA mins(int half) const {
      const uint32_t a = min_fields[0][half], b = min_fields[1][half];
      return {{a, b, a, b}};
    }
  };
  LB_DEVICE static void expand(PairsA (&a)[2], const Unit& unit, const Scales& scales, int part, int word) {
    LB_UNROLL
    for (int i = 0; i < 2; ++i) {
      LB_UNROLL
      for (int half = 0; half < 2; ++half) {
        LB_UNROLL
        for (int odd = 0; odd < 2; ++odd) {
          const uint32_t bits = masked_or(unit.codes[i][part][half] >> (8 * odd + 2 * word), twice(3), twice(0x6400));
          a[half].r[2 * odd + i] = scaled(bits, scales.scale[i][half], scales.off[i][half]);
        }
      }
    }
  }
};

// Table values up to 127, 6-bit scales. Products reach 4064 and are rounded to 11 bits.
struct SkinnyIQ4_XS {
  static constexpr DType kType = DType::kIQ4_XS;
  static constexpr bool kHasMin = false;

  using RowCursor = SkinnyNibbleCursor<u32x2>;
  using Unit = SkinnyNibbleUnit<u32x2>;
  using Fields = SkinnySixBitFields<Unit>;
  struct Scales {
    f16x2 scale[2];
    LB_DEVICE Scales(const Fields& fields, int part) {
      LB_UNROLL
      for (int i = 0; i < 2; ++i)
        scale[i] = small_pair<32>((fields.unit.scales[i][part] >> 6 * (lane() % 4) & 63) * 0x10001u);
    }
  };
  LB_DEVICE static void expand(PairsA (&a)[2], const Unit& unit, const Scales& scales, int part, int word) {
    LB_UNROLL
    for (int i = 0; i < 2; ++i) expand_table_codes<kType>(a, i, unit.codes[i][part][word], pair_bits(scales.scale[i]));
  }
};

}  // namespace lb::gpu
