// The GGML block layouts, byte for byte. quant/dequantize.h defines what the bytes mean.
//
// A block has kValues values in sub-blocks of kSub values. Each sub-block has one scale, and an offset when kHasMin:
//   value = scale * q + offset.
//   nibbles      byte j of 16 holds value j (low) and value j + 16 (high)
//   K quants     blocks of 256 values; the scales of sub-blocks are small integers times the block's f16 d (and dmin)
#pragma once

#include <stdint.h>

#include "base/dtype_id.h"
#include "quant/half.h"  // LB_TABLE

namespace lb::quant {

struct BlockQ4_0 {
  static constexpr DType kType = DType::kQ4_0;
  static constexpr int kValues = 32, kSub = 32;
  static constexpr bool kHasMin = false;
  uint16_t d;      // f16
  uint8_t qs[16];  // nibbles, biased by 8
};

struct BlockQ4_1 {
  static constexpr DType kType = DType::kQ4_1;
  static constexpr int kValues = 32, kSub = 32;
  static constexpr bool kHasMin = true;
  uint16_t d, m;   // f16
  uint8_t qs[16];  // nibbles
};

struct BlockQ5_0 {
  static constexpr DType kType = DType::kQ5_0;
  static constexpr int kValues = 32, kSub = 32;
  static constexpr bool kHasMin = false;
  uint16_t d;      // f16
  uint8_t qh[4];   // bit j: bit 4 of value j; values are biased by 16
  uint8_t qs[16];  // nibbles
};

struct BlockQ5_1 {
  static constexpr DType kType = DType::kQ5_1;
  static constexpr int kValues = 32, kSub = 32;
  static constexpr bool kHasMin = true;
  uint16_t d, m;   // f16
  uint8_t qh[4];   // bit j: bit 4 of value j
  uint8_t qs[16];  // nibbles
};

struct BlockQ8_0 {
  static constexpr DType kType = DType::kQ8_0;
  static constexpr int kValues = 32, kSub = 32;
  static constexpr bool kHasMin = false;
  uint16_t d;  // f16
  int8_t q[32];
};

struct BlockQ2_K {
  static constexpr DType kType = DType::kQ2_K;
  static constexpr int kValues = 256, kSub = 16;
  static constexpr bool kHasMin = true;
  uint8_t scales[16];  // low nibble: scale, high nibble: min
  uint8_t qs[64];      // value l of group j of 32 of half h: bits 2j of byte 32h + l
  uint16_t d, dmin;    // f16
};

struct BlockQ3_K {
  static constexpr DType kType = DType::kQ3_K;
  static constexpr int kValues = 256, kSub = 16;
  static constexpr bool kHasMin = false;
  uint8_t hmask[32];   // bit 2 of that value: bit 4h + j of byte l; values are biased by 4
  uint8_t qs[64];      // bits 0 and 1, as in Q2_K
  uint8_t scales[12];  // 16 of 6 bits, biased by 32
  uint16_t d;          // f16
};

struct BlockQ4_K {
  static constexpr DType kType = DType::kQ4_K;
  static constexpr int kValues = 256, kSub = 32;
  static constexpr bool kHasMin = true;
  uint16_t d, dmin;    // f16
  uint8_t scales[12];  // 8 scales and 8 mins of 6 bits
  uint8_t qs[128];     // value l of sub-block j: byte 32(j/2) + l, the low nibble for even j
};

struct BlockQ5_K {
  static constexpr DType kType = DType::kQ5_K;
  static constexpr int kValues = 256, kSub = 32;
  static constexpr bool kHasMin = true;
  uint16_t d, dmin;    // f16
  uint8_t scales[12];  // as in Q4_K
  uint8_t qh[32];      // bit 4 of value l of sub-block j: bit j of byte l
  uint8_t qs[128];     // bits 0 to 3, as in Q4_K
};

struct BlockQ6_K {
  static constexpr DType kType = DType::kQ6_K;
  static constexpr int kValues = 256, kSub = 16;
  static constexpr bool kHasMin = false;
  uint8_t ql[128];  // bits 0 to 3 of value l of group j of 32 of half h: nibble j/2 of byte 64h + 32(j%2) + l
  uint8_t qh[64];   // bits 4 and 5: bits 2j of byte 32h + l; values are biased by 32
  int8_t scales[16];
  uint16_t d;  // f16
};

struct BlockIQ4_NL {
  static constexpr DType kType = DType::kIQ4_NL;
  static constexpr int kValues = 32, kSub = 32;
  static constexpr bool kHasMin = false;
  uint16_t d;      // f16
  uint8_t qs[16];  // nibbles, indices into kIq4Values
};

struct BlockIQ4_XS {
  static constexpr DType kType = DType::kIQ4_XS;
  static constexpr int kValues = 256, kSub = 32;
  static constexpr bool kHasMin = false;
  uint16_t d;           // f16
  uint8_t scales_h[2];  // bits 4 and 5 of scale i: bits 2i; scales are biased by 32
  uint8_t scales_l[4];  // bits 0 to 3 of scale i: nibble i
  uint8_t qs[128];      // sub-block i: 16 bytes of nibbles, indices into kIq4Values
};

struct BlockMXFP4 {
  static constexpr DType kType = DType::kMXFP4;
  static constexpr int kValues = 32, kSub = 32;
  static constexpr bool kHasMin = false;
  uint8_t e;       // the scale is 2^(e - 128), since kMxfp4Values are doubled
  uint8_t qs[16];  // nibbles, indices into kMxfp4Values
};

struct BlockNVFP4 {
  static constexpr DType kType = DType::kNVFP4;
  static constexpr int kValues = 64, kSub = 16;
  static constexpr bool kHasMin = false;
  uint8_t d[4];      // e4m3 of each sub-block, unsigned; half of it is the scale, since kMxfp4Values are doubled
  uint8_t qs[4][8];  // nibbles, indices into kMxfp4Values: value j (low) and value j + 8 (high) of byte j
};

// NVFP4 in host memory: a row is a ScaledHeader and then these blocks.
struct BlockNVFP4Scaled : BlockNVFP4 {
  static constexpr DType kType = DType::kNVFP4_SCALED;
};
// FP8: e4m3, without NaN. The scale of a tensor, of a row or of a tile of the matrix.
struct BlockF8 {
  static constexpr DType kType = DType::kF8_E4M3;
  static constexpr int kValues = 128;
  float scale;
  uint8_t q[128];
};

// The tensor's scale. `factor` multiplies the blocks' scales. If the file has a divisor, `divisor` is that number and
// `factor` its rounded inverse, which products use; otherwise `divisor` is 0.
struct ScaledHeader {
  float factor, divisor;
};

static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22 && sizeof(BlockQ5_1) == 24);
static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockIQ4_NL) == 18 && sizeof(BlockMXFP4) == 17);
static_assert(sizeof(BlockNVFP4) == 36 && sizeof(BlockNVFP4Scaled) == 36 && sizeof(ScaledHeader) == 8);
static_assert(sizeof(BlockF8) == 132);
static_assert(sizeof(BlockQ2_K) == 84 && sizeof(BlockQ3_K) == 110 && sizeof(BlockQ4_K) == 144);
static_assert(sizeof(BlockQ5_K) == 176 && sizeof(BlockQ6_K) == 210 && sizeof(BlockIQ4_XS) == 136);

LB_TABLE constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
LB_TABLE constexpr int8_t kMxfp4Values[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                              0, -1, -2, -3, -4, -6, -8, -12};  // e2m1, doubled

}  // namespace lb::quant
