// Skinny GEMM formats of NVFP4 and FP8. Codes, and codes times the scale of 16, are f16 exactly; the scales of a
// tensor, a row or 128 values multiply sums in fp32.
#pragma once

#include "gpu/gemm_skinny/formats.h"
#include "gpu/gemm_skinny/table_formats.h"
#include "gpu/plane_scales.h"

namespace lb::gpu {

struct SkinnyNVFP4 {
  static constexpr DType kType = DType::kNVFP4;
  static constexpr bool kHasMin = false;

  struct RowCursor {
    const uint8_t* codes;
    uint32_t scales, factor;  // byte offsets from codes; matrices are smaller than 4 GiB
    RowCursor() = default;
    LB_DEVICE RowCursor(const uint8_t* w, const quant::PlaneLayout& layout, uint32_t out, int k_block) {
      const uint64_t first = plane_offset(layout, 0, out) + k_block * 128 + lane() % 4 * 16;
      codes = w + first;
      scales = uint32_t(plane_offset(layout, 1, out) + k_block * 16 + lane() % 4 * 2 - first);
      factor = uint32_t(plane_offset(layout, 2, out) - first);
    }
    LB_DEVICE void next() {
      codes += 128;
      scales -= 128 - 16;
      factor -= 128;
    }
  };
  struct Unit {
    u32x4 codes[2][2];  // [output, part]
    uint16_t scales[2][2];
    float factor[2];  // of the rows
    LB_DEVICE void read(const RowCursor (&rows)[2]) {
      LB_UNROLL
      for (int i = 0; i < 2; ++i) {
        LB_UNROLL
        for (int part = 0; part < 2; ++part) {
          codes[i][part] = load_stream<u32x4>(rows[i].codes + part * 64);
          scales[i][part] = load_cached<uint16_t>(rows[i].codes + rows[i].scales + part * 8);
        }
        factor[i] = load_cached<float>(rows[i].codes + rows[i].factor);
      }
    }
  };
  struct Fields {
    uint32_t scales[2];  // e4m3 of both halves of both parts
    float factor[2];
    LB_DEVICE explicit Fields(const Unit& unit) {
      LB_UNROLL
      for (int i = 0; i < 2; ++i) {
        scales[i] = unit.scales[i][0] | uint32_t(unit.scales[i][1]) << 16;
        factor[i] = unit.factor[i];
      }
    }
    LB_DEVICE float scale(int i) const { return factor[i]; }
  };
  // Half of the scales, because the table's values are doubled.
  struct Scales {
    uint32_t scale[2][2];  // [output, half of the block]
    LB_DEVICE Scales(const Fields& fields, int part) {
      LB_UNROLL
      for (int i = 0; i < 2; ++i) {
        LB_UNROLL
        for (int half = 0; half < 2; ++half) {
          const uint32_t bits = (fields.scales[i] >> (16 * part + 8 * half) & 0x7f) * 0x00800080u;
          scale[i][half] = pair_bits(times(pair_of(bits), twice(0x5800)));  // 128: kE4m3Unit / 2
        }
      }
    }
  };
  LB_DEVICE static void expand(PairsA (&a)[2], const Unit& unit, const Scales& scales, int part, int word) {
    LB_UNROLL
    for (int i = 0; i < 2; ++i)
      expand_table_codes<kType>(a, i, unit.codes[i][part][word], scales.scale[i][0], scales.scale[i][1]);
  }
};

// The two parts of a k-block have a scale each.
struct SkinnyF8_E4M3 {
  static constexpr DType kType = DType::kF8_E4M3;
  static constexpr bool kHasMin = false;

  struct RowCursor {
    const uint8_t* codes;
    uint32_t scales;  // byte offset from codes; matrices are smaller than 4 GiB
    RowCursor() = default;
    LB_DEVICE RowCursor(const uint8_t* w, const quant::PlaneLayout& layout, uint32_t out, int k_block) {
      const uint64_t first = plane_offset(layout, 0, out) + k_block * 256 + lane() % 4 * 32;
      codes = w + first;
      scales = uint32_t(plane_offset(layout, 1, out) + k_block * 8 - first);
    }
    LB_DEVICE void next() {
      codes += 256;
      scales -= 256 - 8;
    }
  };
  struct Unit {
    u32x4 codes[2][2][2];  // [output, part, half of the block]
    f32x2 scales[2];       // [output]: of both parts
    LB_DEVICE void read(const RowCursor (&rows)[2]) {
      LB_UNROLL
      for (int i = 0; i < 2; ++i) {
        LB_UNROLL
        for (int part = 0; part < 2; ++part) LB_UNROLL
        for (int half = 0; half < 2; ++half)
          codes[i][part][half] = load_stream<u32x4>(rows[i].codes + part * 128 + half * 16);
        scales[i] = load_cached<f32x2>(rows[i].codes + rows[i].scales);
      }
    }
  };
  struct Fields {
    float of_parts[2][2];
    LB_DEVICE explicit Fields(const Unit& unit) {
      LB_UNROLL
      for (int i = 0; i < 2; ++i) {
        LB_UNROLL
        for (int part = 0; part < 2; ++part) of_parts[i][part] = kE4m3Unit * unit.scales[i][part];
      }
    }
    LB_DEVICE float scale(int i, int part) const { return of_parts[i][part]; }
  };
  struct Scales {
    LB_DEVICE Scales(const Fields&, int) {}
  };
  LB_DEVICE static void expand(PairsA (&a)[2], const Unit& unit, const Scales&, int part, int word) {
    LB_UNROLL
    for (int i = 0; i < 2; ++i) {
      LB_UNROLL
      for (int half = 0; half < 2; ++half) {
        LB_UNROLL
        for (int odd = 0; odd < 2; ++odd) a[half].r[2 * odd + i] = e4m3_pair(unit.codes[i][part][half][word], odd);
      }
    }
  }
};

}  // namespace lb::gpu
