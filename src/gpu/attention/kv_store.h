// Stores keys and values in their slots and rotates heads, one warp per head. quant/kv_type.h defines the layout;
// quant/kv_rows.h and quant/rotation.h define the arithmetic per value.
//
// A lane holds four consecutive values in each round of 128, from head_column(j) on; values beyond the head are zero.
// Eight lanes therefore share a block of 32 values, and 8, 16 or 32 lanes share a rotated group. Every lane of the warp
// must take part.
#pragma once

#include "gpu/attention/kv_slots.h"
#include "quant/rotation.h"

namespace lb::gpu {

LB_DEVICE int head_column(int round) { return 4 * lane() + 128 * round; }

// Sum over the lanes of a group of n values.
LB_DEVICE float group_sum(float v, int n) {
  LB_UNROLL
  for (int mask = 1; mask < 32; mask *= 2)
    if (4 * mask < n) v += shuffle_xor(v, mask);
  return v;
}

// Signs of the lane's four values in a rotated group of n, in the low bits.
LB_DEVICE uint32_t lane_signs(const uint32_t (&signs)[4], int n) {
  const int at = 4 * lane() % n, word = at / 32;
  const uint32_t lower = word & 1 ? signs[1] : signs[0], upper = word & 1 ? signs[3] : signs[2];
  return (word & 2 ? upper : lower) >> at % 32;
}
LB_DEVICE void flip(f32x4& x, uint32_t signs) {
  LB_UNROLL
  for (int i = 0; i < 4; ++i) x[i] = quant::float_of(quant::bits_of(x[i]) ^ (signs << (31 - i) & 0x80000000u));
}

// Walsh-Hadamard transform of each group of n values: two strides within the lane, the others by shuffles.
LB_DEVICE void transform(f32x4& x, int n) {
  x = {x[0] + x[1], x[0] - x[1], x[2] + x[3], x[2] - x[3]};
  x = {x[0] + x[2], x[1] + x[3], x[0] - x[2], x[1] - x[3]};
  LB_UNROLL
  for (int mask = 1; mask < 32; mask *= 2) {
    if (4 * mask >= n) continue;
    LB_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float other = shuffle_xor(x[i], mask);
      x[i] = lane() & mask ? other - x[i] : x[i] + other;
    }
  }
  const float scale = n == 128 ? 0x1.6a09e6p-4f : n == 64 ? 0.125f : 0x1.6a09e6p-3f;  // 1 / sqrt(n)
  LB_UNROLL
  for (int i = 0; i < 4; ++i) x[i] *= scale;
}

// Rotates each group of n values, or inverts the rotation.
template <int kRounds>
LB_DEVICE void rotate_head(f32x4 (&x)[kRounds], int n) {
  const uint32_t before = lane_signs(quant::kSignsBefore, n), after = lane_signs(quant::kSignsAfter, n);
  LB_UNROLL
  for (int j = 0; j < kRounds; ++j) {
    flip(x[j], before);
    transform(x[j], n);
    flip(x[j], after);
  }
}
template <int kRounds>
LB_DEVICE void unrotate_head(f32x4 (&x)[kRounds], int n) {
  const uint32_t before = lane_signs(quant::kSignsBefore, n), after = lane_signs(quant::kSignsAfter, n);
  LB_UNROLL
  for (int j = 0; j < kRounds; ++j) {
    flip(x[j], after);
    transform(x[j], n);
    flip(x[j], before);
  }
}

// Stores codes of `bits` bits, four per lane. 8 / bits lanes share a word, and the first of them stores it.
LB_DEVICE void put_codes(uint8_t* row, int column, int bits, const uint32_t (&codes)[4], bool is_inside) {
  const int n_lanes = 8 / bits, own = lane() % n_lanes;
  uint32_t word = (codes[0] | codes[1] << 16 | (codes[2] | codes[3] << 16) << bits) << 2 * bits * own;
  LB_UNROLL
  for (int mask = 1; mask < 8; mask *= 2)
    if (mask < n_lanes) word |= shuffle_xor(word, mask);
  if (is_inside && own == 0) store(row + column * bits / 8, word);
}
// Stores codes of up to 8 bits: the low bits, and the highest bit if it has its own plane.
LB_DEVICE void put_codes(const quant::KvRow& row, int column, int bits, int low_bits, const uint32_t (&codes)[4],
                         bool is_inside) {
  uint32_t low[4], high[4];
  LB_UNROLL
  for (int i = 0; i < 4; ++i) {
    low[i] = codes[i] & ((1u << low_bits) - 1);
    high[i] = codes[i] >> low_bits;
  }
  put_codes(row.codes, column, low_bits, low, is_inside);
  if (bits > low_bits) put_codes(row.high, column, 1, high, is_inside);
}

// Rounds x down to an integer in [0, most].
LB_DEVICE uint32_t whole(float x, int most) { return uint32_t(min(max(int(x), 0), most)); }

// Stores blocks of 32 values, for the types with one scale per block and optionally a minimum.
template <int kRounds>
LB_DEVICE void store_blocks(int bits, int low_bits, bool has_minimum, const quant::KvRow& row,
                            const f32x4 (&x)[kRounds], int head_dim) {
  const int most = (1 << bits) - 1, half = 1 << (bits - 1);
  LB_UNROLL
  for (int j = 0; j < kRounds; ++j) {
    const int column = head_column(j);
    const bool is_inside = column < head_dim;
    float low = min(min(x[j][0], x[j][1]), min(x[j][2], x[j][3]));
    float high = max(max(x[j][0], x[j][1]), max(x[j][2], x[j][3]));
    LB_UNROLL
    for (int mask = 1; mask < 8; mask *= 2) {
      low = min(low, shuffle_xor(low, mask));
      high = max(high, shuffle_xor(high, mask));
    }
    // 8-bit codes are symmetric. With fewer bits, the value of largest magnitude gets the code 0 (in a tie, the
    // positive one).
    const float largest = max(high, -low);
    const float scale = has_minimum ? (high - low) / float(most)
                        : bits == 8 ? largest / 127
                                    : (high >= -low ? high : low) / float(-half);
    const float inverse = scale != 0 ? 1 / scale : 0;
    uint32_t codes[4];
    LB_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float n = (has_minimum ? x[j][i] - low : x[j][i]) * inverse;
      codes[i] = has_minimum ? whole(n + 0.5f, most)
                 : bits == 8 ? uint32_t(int(n < 0 ? n - 0.5f : n + 0.5f) + half)
                             : whole(n + float(half) + 0.5f, most);
    }
    put_codes(row, column, bits, low_bits, codes, is_inside);
    if (!is_inside || lane() % 8 != 0) continue;
    if (has_minimum)
      store(row.scales + column / 16, Vec<f16, 2>{to_f16(scale), to_f16(low)});
    else
      store(row.scales + column / 32, to_f16(scale));
  }
}

// Rotates x, then stores its levels and the scale that preserves the group's length.
template <KvType kType, int kRounds>
LB_DEVICE void store_levels(const quant::KvRow& row, f32x4 (&x)[kRounds], int head_dim) {
  constexpr int kBits = kKvTraits[int(kType)].bits, kLowBits = kKvTraits[int(kType)].low_bits;
  constexpr int kLevels = 1 << (kBits - 1);
  const int n = rotated_group(head_dim), per_scale = scale_group(kType, head_dim);
  float length[kRounds];
  LB_UNROLL
  for (int j = 0; j < kRounds; ++j)
    length[j] = sqrt(group_sum((x[j][0] * x[j][0] + x[j][1] * x[j][1]) + (x[j][2] * x[j][2] + x[j][3] * x[j][3]), n));
  rotate_head(x, n);
  LB_UNROLL
  for (int j = 0; j < kRounds; ++j) {
    const int column = head_column(j);
    const bool is_inside = column < head_dim;
    const float unit = kKvTraits[int(kType)].unit;
    const float to_levels = length[j] > 1e-10f ? sqrt(float(n) / kRotatedGroup) / (length[j] * unit) : 0;
    uint32_t codes[4];
    float squares = 0;
    LB_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float y = x[j][i] * to_levels;
      const auto& levels = kKvTraits[int(kType)].levels;
      uint32_t level = 0;
      float magnitude = levels[0];
      LB_UNROLL
      for (int l = 1; l < kLevels; ++l)
        if (abs(y) >= (levels[l - 1] + levels[l]) / 2) {
          level = uint32_t(l);
          magnitude = levels[l];
        }
      squares += magnitude * magnitude;
      codes[i] = level | (y < 0 ? kLevels : 0);
    }
    squares = group_sum(squares, n);
    put_codes(row, column, kBits, kLowBits, codes, is_inside);
    const float scale = length[j] > 1e-10f ? length[j] / sqrt(squares) : length[j];
    if (is_inside && column % per_scale == 0) store(row.scales + column / per_scale, to_f16(scale));
  }
}

template <class T, int kRounds>
LB_DEVICE void store_numbers(const quant::KvRow& row, const f32x4 (&x)[kRounds], int head_dim) {
  LB_UNROLL
  for (int j = 0; j < kRounds; ++j) {
    if (head_column(j) >= head_dim) continue;
    Vec<T, 4> rounded;
    LB_UNROLL
    for (int i = 0; i < 4; ++i) rounded[i] = stored_as(x[j][i], T{});
    store(row.codes + head_column(j) * sizeof(T), rounded);
  }
}

// Stores x[head_dim] in a slot's row. For rotated types, x holds the rotated values afterwards.
template <int kRounds>
LB_DEVICE void store_head(KvType type, const quant::KvRow& row, f32x4 (&x)[kRounds], int head_dim) {
  switch (type) {
    case KvType::kF32: return store_numbers<float>(row, x, head_dim);
    case KvType::kF16: return store_numbers<f16>(row, x, head_dim);
    case KvType::kBF16: return store_numbers<bf16>(row, x, head_dim);
    case KvType::kTQ3_0: return store_levels<KvType::kTQ3_0>(row, x, head_dim);
    case KvType::kWHT4: return store_levels<KvType::kWHT4>(row, x, head_dim);
    case KvType::kWHT3: return store_levels<KvType::kWHT3>(row, x, head_dim);
    case KvType::kFp8: {
      LB_UNROLL
      for (int j = 0; j < kRounds; ++j) {
        uint32_t codes[4];
        LB_UNROLL
        for (int i = 0; i < 4; ++i) codes[i] = to_fp8(x[j][i]).bits;
        put_codes(row.codes, head_column(j), 8, codes, head_column(j) < head_dim);
      }
      return;
    }
    default: {
      const int bits = type == KvType::kQ8_0 ? 8 : type == KvType::kQ5_0 || type == KvType::kQ5_1 ? 5 : 4;
      return store_blocks(bits, bits == 8 ? 8 : 4, type == KvType::kQ5_1 || type == KvType::kQ4_1, row, x, head_dim);
    }
  }
}

}  // namespace lb::gpu
