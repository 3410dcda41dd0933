// Block types without GPU kernels: codebook types (IQ1, IQ2, IQ3) and ternary types (TQ1_0, TQ2_0).
// A device gets their values as BF16 (quant/planes.h); the CPU unpacks them like any other block. Host only.
//
// A sub-block has signed 8-bit codes and one scale, as in quant/dequantize.h.
//   signs      of 8 values: 7 bits, and an eighth that gives them even parity; or a byte
//   f16 d      times the sub-block's scale, a small integer
#pragma once

#include <stdint.h>
#include <string.h>

#include "quant/codebooks.h"
#include "quant/dequantize.h"

namespace lb::quant {

struct BlockIQ2_XXS {
  static constexpr DType kType = DType::kIQ2_XXS;
  static constexpr int kValues = 256, kSub = 32;
  static constexpr bool kHasMin = false;
  uint16_t d;        // f16
  uint8_t qs[8][8];  // [sub-block]: 4 codebook entries; a word with 7 signs for each, and the scale in the top 4 bits
};

struct BlockIQ2_XS {
  static constexpr DType kType = DType::kIQ2_XS;
  static constexpr int kValues = 256, kSub = 16;
  static constexpr bool kHasMin = false;
  uint16_t d;         // f16
  uint16_t qs[32];    // each group of 8 values: codebook entry (9 bits) and 7 signs
  uint8_t scales[8];  // nibbles
};

struct BlockIQ2_S {
  static constexpr DType kType = DType::kIQ2_S;
  static constexpr int kValues = 256, kSub = 16;
  static constexpr bool kHasMin = false;
  uint16_t d;         // f16
  uint8_t qs[32];     // bits 0 to 7 of the entry of 8 values
  uint8_t signs[32];  // bytes of signs
  uint8_t qh[8];      // bits 8 and 9 of entry i: bits 2(i % 4) of byte i / 4
  uint8_t scales[8];  // nibbles
};

struct BlockIQ3_XXS {
  static constexpr DType kType = DType::kIQ3_XXS;
  static constexpr int kValues = 256, kSub = 32;
  static constexpr bool kHasMin = false;
  uint16_t d;            // f16
  uint8_t qs[64];        // entries of 4 values
  uint8_t scales[8][4];  // [sub-block]: a word with 4 groups of 7 signs, and the scale in the top 4 bits
};

struct BlockIQ3_S {
  static constexpr DType kType = DType::kIQ3_S;
  static constexpr int kValues = 256, kSub = 32;
  static constexpr bool kHasMin = false;
  uint16_t d;         // f16
  uint8_t qs[64];     // bits 0 to 7 of the entry of 4 values
  uint8_t qh[8];      // bit 8 of entry i: bit i % 8 of byte i / 8
  uint8_t signs[32];  // bytes of signs
  uint8_t scales[4];  // nibbles
};

struct BlockIQ1_S {
  static constexpr DType kType = DType::kIQ1_S;
  static constexpr int kValues = 256, kSub = 32;
  static constexpr bool kHasMin = false;
  uint16_t d;      // f16
  uint8_t qs[32];  // bits 0 to 7 of the entry of 8 values
  uint16_t qh[8];  // [sub-block]: bits 8 to 10 of each of 4 entries, 3 bits of scale, the sign of the shift by 1/8
};

struct BlockIQ1_M {
  static constexpr DType kType = DType::kIQ1_M;
  static constexpr int kValues = 256, kSub = 16;
  static constexpr bool kHasMin = false;
  uint8_t qs[32];      // bits 0 to 7 of the entry of 8 values
  uint8_t qh[16];      // nibble i: bits 8 to 10 of entry i, and the sign of its shift by 1/8
  uint16_t scales[4];  // 4 scales of 3 bits, and 4 bits of d
};

struct BlockTQ1_0 {
  static constexpr DType kType = DType::kTQ1_0;
  static constexpr int kValues = 256, kSub = 32;
  static constexpr bool kHasMin = false;
  uint8_t qs[48];  // 5 ternary digits: value 32n + l is digit n of byte l < 32, value 160 + 16n + l of byte 32 + l
  uint8_t qh[4];   // 4 ternary digits: value 240 + 4n + l
  uint16_t d;      // f16
};

struct BlockTQ2_0 {
  static constexpr DType kType = DType::kTQ2_0;
  static constexpr int kValues = 256, kSub = 32;
  static constexpr bool kHasMin = false;
  uint8_t qs[64];  // value l of group j of 32 of half h: bits 2j of byte 32h + l
  uint16_t d;      // f16
};

static_assert(sizeof(BlockIQ2_XXS) == 66 && sizeof(BlockIQ2_XS) == 74 && sizeof(BlockIQ2_S) == 82);
static_assert(sizeof(BlockIQ3_XXS) == 98 && sizeof(BlockIQ3_S) == 110);
static_assert(sizeof(BlockIQ1_S) == 50 && sizeof(BlockIQ1_M) == 56);
static_assert(sizeof(BlockTQ1_0) == 54 && sizeof(BlockTQ2_0) == 66);

LB_FN uint32_t word_at(const uint8_t* p) {
  uint32_t word;
  memcpy(&word, p, sizeof word);
  return word;
}

// The byte of eight signs, given its low seven bits: the eighth gives it even parity.
LB_FN uint32_t eight_signs(uint32_t seven) {
  uint32_t parity = seven ^ seven >> 4;
  parity ^= parity >> 2;
  parity ^= parity >> 1;
  return seven | (parity & 1) << 7;
}

// q [n] <- the magnitudes of a codebook entry, negative where a bit of `signs` is set.
template <int kBits, int kCount>
LB_FN void signed_codes(uint32_t entry, const int8_t* values, uint32_t signs, int8_t* q) {
  for (int l = 0; l < kCount; ++l) {
    const int8_t value = values[entry >> kBits * l & ((1 << kBits) - 1)];
    q[l] = signs >> l & 1 ? int8_t(-value) : value;
  }
}

LB_FN int nibble(const uint8_t* p, int i) { return p[i / 2] >> 4 * (i % 2) & 15; }

LB_FN ScaleOffset unpack(const BlockIQ2_XXS& b, int i, int8_t* q) {
  const uint32_t word = word_at(b.qs[i] + 4);
  for (int g = 0; g < 4; ++g)
    signed_codes<2, 8>(kIq2XxsCodes[b.qs[i][g]], kIq2Values, eight_signs(word >> 7 * g & 127), q + 8 * g);
  return {f16_to_f32(b.d) * (0.5f + float(word >> 28)) * 0.25f, 0};
}

LB_FN ScaleOffset unpack(const BlockIQ2_XS& b, int i, int8_t* q) {
  for (int g = 0; g < 2; ++g) {
    const uint32_t code = b.qs[2 * i + g];
    signed_codes<2, 8>(kIq2XsCodes[code & 511], kIq2Values, eight_signs(code >> 9), q + 8 * g);
  }
  return {f16_to_f32(b.d) * (0.5f + float(nibble(b.scales, i))) * 0.25f, 0};
}

LB_FN ScaleOffset unpack(const BlockIQ2_S& b, int i, int8_t* q) {
  for (int g = 0; g < 2; ++g) {
    const int k = 2 * i + g;
    const int entry = b.qs[k] | (b.qh[k / 4] >> 2 * (k % 4) & 3) << 8;
    signed_codes<2, 8>(kIq2SCodes[entry], kIq2Values, b.signs[k], q + 8 * g);
  }
  return {f16_to_f32(b.d) * (0.5f + float(nibble(b.scales, i))) * 0.25f, 0};
}

LB_FN ScaleOffset unpack(const BlockIQ3_XXS& b, int i, int8_t* q) {
  const uint32_t word = word_at(b.scales[i]);
  for (int g = 0; g < 8; ++g) {
    const uint32_t signs = eight_signs(word >> 7 * (g / 2) & 127);
    signed_codes<3, 4>(kIq3XxsCodes[b.qs[8 * i + g]], kIq3XxsValues, signs >> 4 * (g % 2), q + 4 * g);
  }
  return {f16_to_f32(b.d) * (0.5f + float(word >> 28)) * 0.5f, 0};
}

LB_FN ScaleOffset unpack(const BlockIQ3_S& b, int i, int8_t* q) {
  for (int g = 0; g < 8; ++g) {
    const int entry = b.qs[8 * i + g] | (b.qh[i] >> g & 1) << 8;
    signed_codes<3, 4>(kIq3SCodes[entry], kIq3SValues, b.signs[4 * i + g / 2] >> 4 * (g % 2), q + 4 * g);
  }
  return {f16_to_f32(b.d) * float(1 + 2 * nibble(b.scales, i)), 0};
}

// q [8] <- 8 times the values of an entry, each shifted by 1/8 up or down: integers again.
LB_FN void shifted_codes(int entry, bool is_down, int8_t* q) {
  for (int l = 0; l < 8; ++l) q[l] = int8_t(8 * kIq1Values[kIq1Codes[entry] >> 2 * l & 3] + (is_down ? -1 : 1));
}

LB_FN ScaleOffset unpack(const BlockIQ1_S& b, int i, int8_t* q) {
  for (int g = 0; g < 4; ++g) shifted_codes(b.qs[4 * i + g] | (b.qh[i] >> 3 * g & 7) << 8, b.qh[i] >> 15, q + 8 * g);
  return {f16_to_f32(b.d) * float(2 * (b.qh[i] >> 12 & 7) + 1) * 0.125f, 0};
}

LB_FN ScaleOffset unpack(const BlockIQ1_M& b, int i, int8_t* q) {
  for (int g = 0; g < 2; ++g) {
    const int k = 2 * i + g, high = nibble(b.qh, k);
    shifted_codes(b.qs[k] | (high & 7) << 8, high >> 3, q + 8 * g);
  }
  const int d = b.scales[0] >> 12 | (b.scales[1] >> 12) << 4 | (b.scales[2] >> 12) << 8 | (b.scales[3] >> 12) << 12;
  return {f16_to_f32(uint16_t(d)) * float(2 * (b.scales[i / 4] >> 3 * (i % 4) & 7) + 1) * 0.125f, 0};
}

// Ternary digit n of a byte, as -1, 0 or 1. The byte is a base-3 fraction in units of 1/256.
LB_FN int8_t ternary(uint8_t byte, int n) {
  constexpr uint8_t kPowers[5] = {1, 3, 9, 27, 81};
  return int8_t((uint8_t(byte * kPowers[n]) * 3 >> 8) - 1);
}

LB_FN ScaleOffset unpack(const BlockTQ1_0& b, int i, int8_t* q) {
  for (int l = 0; l < 32; ++l) {
    const int value = 32 * i + l;
    if (i < 5)
      q[l] = ternary(b.qs[l], i);
    else if (value < 240)
      q[l] = ternary(b.qs[32 + l % 16], (value - 160) / 16);
    else
      q[l] = ternary(b.qh[l % 4], (value - 240) / 4);
  }
  return {f16_to_f32(b.d), 0};
}

LB_FN ScaleOffset unpack(const BlockTQ2_0& b, int i, int8_t* q) {
  for (int l = 0; l < 32; ++l) q[l] = int8_t((b.qs[32 * (i / 4) + l] >> 2 * (i % 4) & 3) - 1);
  return {f16_to_f32(b.d), 0};
}

}  // namespace lb::quant
