// Converts stored keys and values to numbers, eight consecutive values of a row at a time, from a page in global memory
// or a tile in shared memory. quant/kv_type.h defines the layout.
//
// A word of codes holds neighbouring values in its two halves, so one mask extracts a pair. An integer n below 1024
// becomes an f16 in place: 0x6400 | n is 1024 + n, from which 1024 is subtracted exactly. The scale is applied only
// then: an fma with -1024 * scale would round.
#pragma once

#include "gpu/attention/kv_slots.h"
#include "quant/kv_type.h"

namespace lb::gpu {

struct FromShared {
  template <class V>
  LB_DEVICE static V load(const void* from) {
    return gpu::load<V>(from);
  }
};
struct FromGlobal {  // pages that no thread of this launch writes
  template <class V>
  LB_DEVICE static V load(const void* from) {
    return load_cached<V>(from);
  }
};

LB_DEVICE uint32_t fma_pair(uint32_t a, uint32_t b, uint32_t c) {
  return __builtin_bit_cast(
      uint32_t, fma2(__builtin_bit_cast(f16x2, a), __builtin_bit_cast(f16x2, b), __builtin_bit_cast(f16x2, c)));
}
LB_DEVICE constexpr uint32_t twice(uint32_t half) { return half | half << 16; }
inline constexpr uint32_t kOnes = 0x3c003c00, kSixteenths = 0x2c002c00;

// The low and the high bytes of the f16 magnitudes of a type's levels.
template <KvType kType>
LB_DEVICE void level_bytes(u32x2& low, u32x2& high) {
  low = high = {};
  LB_UNROLL
  for (int i = 0; i < 8; ++i) {
    const uint32_t bits = quant::f32_to_f16(kKvTraits[int(kType)].levels[i]);
    low[i / 4] |= (bits & 0xff) << 8 * (i % 4);
    high[i / 4] |= (bits >> 8) << 8 * (i % 4);
  }
}

// Eight values of a row as stored, without their scale. In every word, the low half holds even-indexed values and the
// high half odd-indexed values.
template <KvType kType>
struct KvWords {
  static constexpr int kBits = kKvTraits[int(kType)].bits, kLowBits = kKvTraits[int(kType)].low_bits;
  static constexpr int kCount = kBits >= 16 ? 4 : kBits == 8 ? 2 : 1;
  uint32_t codes[kCount];  // two-bit codes: in the low byte of each half
  uint32_t high;           // top bits of 5-bit and 3-bit codes, from bit 0 of each half on
};

// Loads eight values; column is a multiple of 8.
template <KvType kType, class From>
LB_DEVICE KvWords<kType> load_words(const quant::KvRow& row, int column) {
  using Words = KvWords<kType>;
  Words words = {};
  if constexpr (Words::kCount == 4) {
    const auto four = From::template load<u32x4>(row.codes + 2 * column);
    LB_UNROLL
    for (int i = 0; i < 4; ++i) words.codes[i] = four[i];
  } else if constexpr (Words::kCount == 2) {
    const auto two = From::template load<u32x2>(row.codes + column);
    words.codes[0] = two[0];
    words.codes[1] = two[1];
  } else if constexpr (Words::kLowBits == 4) {
    words.codes[0] = From::template load<uint32_t>(row.codes + column / 2);
  } else {
    words.codes[0] = From::template load<uint32_t>(row.codes + column / 16 * 4) >> (column & 8);
  }
  if constexpr (Words::kBits == 5 || Words::kBits == 3)
    words.high = From::template load<uint32_t>(row.high + column / 32 * 4) >> column % 32 / 2;
  return words;
}

// The eight values before scale and minimum, as pairs of f16. Exact, except that levels of tq3_0 and values of bf16 are
// rounded to f16. The halves of a pair match the halves of the words.
template <KvType kType>
LB_DEVICE u32x4 to_numbers(const KvWords<kType>& words) {
  using Words = KvWords<kType>;
  constexpr KvCode kCode = kKvTraits[int(kType)].code;
  u32x4 pairs;
  LB_UNROLL
  for (int j = 0; j < 4; ++j) {
    if constexpr (kType == KvType::kF16) {
      pairs[j] = words.codes[j];
    } else if constexpr (kType == KvType::kBF16) {
      const uint32_t two = words.codes[j];
      pairs[j] = __builtin_bit_cast(
          uint32_t, to_f16x2(__builtin_bit_cast(float, two << 16), __builtin_bit_cast(float, two & 0xffff0000)));
    } else if constexpr (Words::kBits == 8) {
      const uint32_t word = words.codes[j / 2] >> 8 * (j % 2);
      if constexpr (kType == KvType::kFp8) {  // the f16 of value / 256; magnitudes of all ones are NaN
        const uint32_t magnitude = word & 0x007f007f, nan = (magnitude + 0x00010001) & 0x00800080;
        pairs[j] = (word & 0x00800080) << 8 | (magnitude | nan) << 7;
      } else {
        pairs[j] = fma_pair(masked_or(word, 0x00ff00ff, 0x64006400), kOnes, twice(0xe400 | 128));
      }
    } else if constexpr (kCode != KvCode::kLevel) {
      // A code in bits 4 to 7 of a half reads as 16 times its value.
      constexpr uint32_t kOffset = kCode == KvCode::kOffset ? 1u << (Words::kBits - 1) : 0;
      const uint32_t word = words.codes[0] >> j / 2 * 8;
      uint32_t bits = 0x64006400;
      if (j % 2 == 0) {
        if constexpr (Words::kBits == 5) bits = masked_or(words.high << 4 >> j, 0x00100010, bits);
        pairs[j] = fma_pair(masked_or(word, 0x000f000f, bits), kOnes, twice(0xe400 | kOffset));
      } else {
        if constexpr (Words::kBits == 5) bits = masked_or(words.high << 8 >> j, 0x01000100, bits);
        const uint32_t offset = quant::f32_to_f16(-64.0f - float(kOffset));
        pairs[j] = fma_pair(masked_or(word, 0x00f000f0, bits), kSixteenths, twice(offset));
      }
    }
  }
  if constexpr (kCode == KvCode::kLevel) {
    u32x2 low_bytes, high_bytes;
    level_bytes<kType>(low_bytes, high_bytes);
    const uint32_t low = words.codes[0];
    uint32_t indices = low & 0x77777777;
    if constexpr (Words::kLowBits == 2) {  // spreads each two-bit code to a nibble
      indices = low & 0x00ff00ff;
      indices = (indices | indices << 4) & 0x0f0f0f0f;
      indices = (indices | indices << 2) & 0x33333333;
    }
    pairs = lookup8_f16(low_bytes, high_bytes, indices);
    LB_UNROLL
    for (int j = 0; j < 4; ++j)
      pairs[j] ^= (Words::kLowBits == 4 ? low << (12 - 4 * j) : words.high << (15 - j)) & 0x80008000;
  }
  return pairs;
}

// The scale and the minimum of a group, each duplicated in both halves.
struct KvScale {
  uint32_t scale, minimum;
};

// log2 of the number of values that share a scale.
LB_DEVICE constexpr int scale_shift(KvType type, int head_dim) {
  const int group = scale_group(type, head_dim);
  return group == 128 ? 7 : group == 64 ? 6 : 5;
}

template <KvType kType, class From>
LB_DEVICE KvScale load_scale(const quant::KvRow& row, int column, int shift) {
  constexpr KvCode kCode = kKvTraits[int(kType)].code;
  if constexpr (kType == KvType::kFp8) {
    return {twice(0x5c00), 0};  // 256
  } else if constexpr (kCode == KvCode::kNumber) {
    return {kOnes, 0};
  } else if constexpr (kCode == KvCode::kMinimum) {
    const auto both = From::template load<uint32_t>(row.scales + 2 * (column >> shift));
    return {twice(both & 0xffff), (both & 0xffff0000) | both >> 16};
  } else {
    return {twice(From::template load<uint16_t>(row.scales + (column >> shift))), 0};
  }
}

// Converts to f16 operands. A value is rounded at most twice: its product with the scale, and its level if f16 cannot
// represent it.
template <KvType kType>
LB_DEVICE u32x4 to_operands(const KvWords<kType>& words, const KvScale& scale) {
  u32x4 pairs = to_numbers(words);
  if constexpr (kType != KvType::kF16 && kType != KvType::kBF16) {
    LB_UNROLL
    for (int j = 0; j < 4; ++j) pairs[j] = fma_pair(pairs[j], scale.scale, scale.minimum);
  }
  return pairs;
}
template <KvType kType, class From>
LB_DEVICE u32x4 load_operands(const quant::KvRow& row, int column, int shift) {
  return to_operands(load_words<kType, From>(row, column), load_scale<kType, From>(row, column, shift));
}

// Eight values in fp32: as quant::load_row, except that levels of tq3_0 are rounded to f16.
template <KvType kType, class From>
LB_DEVICE void load_eight(const quant::KvRow& row, int column, int shift, f32x4 (&x)[2]) {
  if constexpr (kType == KvType::kF32) {
    x[0] = From::template load<f32x4>(row.codes + 4 * column);
    x[1] = From::template load<f32x4>(row.codes + 4 * column + 16);
  } else if constexpr (kType == KvType::kBF16) {
    const auto stored = From::template load<Vec<bf16, 8>>(row.codes + 2 * column);
    LB_UNROLL
    for (int j = 0; j < 8; ++j) x[j / 4][j % 4] = to_f32(stored[j]);
  } else {
    const u32x4 pairs = to_numbers(load_words<kType, From>(row, column));
    const KvScale group = load_scale<kType, From>(row, column, shift);
    const float scale = to_f32(f16{uint16_t(group.scale)}), minimum = to_f32(f16{uint16_t(group.minimum)});
    LB_UNROLL
    for (int j = 0; j < 8; ++j) {
      const float number = to_f32(f16{uint16_t(pairs[j / 2] >> 16 * (j % 2))});
      x[j / 4][j % 4] = kKvTraits[int(kType)].code == KvCode::kMinimum ? fma(number, scale, minimum) : number * scale;
    }
  }
}

}  // namespace lb::gpu
