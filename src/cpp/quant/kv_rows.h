// Stores and loads rows of K or V in a page of a KV head (kv_type.h), one value at a time: the reference that faster
// bodies are tested against.
#pragma once

#include "quant/kv_type.h"
#include "quant/rotation.h"

namespace lb::quant {

// Exact: every e4m3 value is an f16 value.
LB_FN float fp8_to_f32(uint8_t code) {
  if ((code & 0x7f) == 0x7f) return float_of(0x7fc00000);
  return f16_to_f32(uint16_t((code & 0x80) << 8 | (code & 0x7f) << 7)) * 256;
}
// Rounds to nearest even and saturates at +-448. NaN stays NaN.
LB_FN uint8_t f32_to_fp8(float x) {
  const uint32_t sign = bits_of(x) >> 24 & 0x80, magnitude = bits_of(x) & 0x7fffffff;
  if (magnitude > 0x7f800000) return uint8_t(sign | 0x7f);
  if (magnitude >= 0x43e00000) return uint8_t(sign | 0x7e);  // 448
  if (magnitude < 0x3c800000)                                // below 2^-6: units of 2^-9, rounded by the addition
    return uint8_t(sign | (bits_of(float_of(magnitude) + 0x1p14f) - bits_of(0x1p14f)));
  const uint32_t odd = magnitude >> 20 & 1;
  return uint8_t(sign | (magnitude - (120u << 23) + 0x7ffff + odd) >> 20);
}

LB_FN void put_bits(uint8_t* row, int i, int bits, uint32_t code) {
  uint32_t* word = reinterpret_cast<uint32_t*>(row) + i / (32 / bits);
  const int shift = kv_code_shift(i, bits);
  const uint32_t mask = ((1u << bits) - 1) << shift;
  *word = (*word & ~mask) | code << shift;
}
LB_FN uint32_t get_bits(const uint8_t* row, int i, int bits) {
  return reinterpret_cast<const uint32_t*>(row)[i / (32 / bits)] >> kv_code_shift(i, bits) & ((1u << bits) - 1);
}

LB_FN void put_code(const KvTraits& traits, const KvRow& row, int i, uint32_t code) {
  put_bits(row.codes, i, traits.low_bits, code & ((1u << traits.low_bits) - 1));
  if (traits.bits > traits.low_bits) put_bits(row.high, i, 1, code >> traits.low_bits);
}
LB_FN uint32_t get_code(const KvTraits& traits, const KvRow& row, int i) {
  const uint32_t low = get_bits(row.codes, i, traits.low_bits);
  return traits.bits > traits.low_bits ? low | get_bits(row.high, i, 1) << traits.low_bits : low;
}

// min(floor(x), most). x is nonnegative up to rounding error.
LB_FN uint32_t whole(float x, int most) {
  const int n = int(x);
  return uint32_t(n < 0 ? 0 : n > most ? most : n);
}

// Stores the codes and the scale of 32 values, computed as in GGML's reference quantisers.
LB_FN void store_block(const KvTraits& traits, const float* x, const KvRow& row, int first) {
  float low = x[0], high = x[0];
  for (int i = 1; i < 32; ++i) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
  }
  const int most = (1 << traits.bits) - 1, half = 1 << (traits.bits - 1), group = first / 32;
  if (traits.code == KvCode::kMinimum) {
    const float scale = (high - low) / float(most), inverse = scale != 0 ? 1 / scale : 0;
    row.scales[2 * group] = f32_to_f16(scale);
    row.scales[2 * group + 1] = f32_to_f16(low);
    for (int i = 0; i < 32; ++i) put_code(traits, row, first + i, whole((x[i] - low) * inverse + 0.5f, most));
    return;
  }
  const float largest = high > -low ? high : -low;
  // 8-bit codes are symmetric. With fewer bits, the value of largest magnitude (on a tie the positive one) gets code 0.
  const float scale = traits.bits == 8 ? largest / 127 : (high >= -low ? high : low) / float(-half);
  const float inverse = scale != 0 ? 1 / scale : 0;
  row.scales[group] = f32_to_f16(scale);
  for (int i = 0; i < 32; ++i) {
    const float n = x[i] * inverse;
    put_code(
        traits, row, first + i,
        traits.bits == 8 ? uint32_t(int(n < 0 ? n - 0.5f : n + 0.5f) + half) : whole(n + float(half) + 0.5f, most));
  }
}

// Stores the codes of a rotated group of n values, and the scale that preserves the group's norm.
LB_FN void store_levels(const KvTraits& traits, float* x, int n, int scale_group, const KvRow& row, int first) {
  const int n_levels = 1 << (traits.bits - 1);
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += x[i] * x[i];
  const float length = __builtin_sqrtf(sum);
  rotate(x, n);
  const float to_levels = length > 1e-10f ? __builtin_sqrtf(float(n) / kRotatedGroup) / (length * traits.unit) : 0;
  float squares = 0;
  for (int i = 0; i < n; ++i) {
    const float y = x[i] * to_levels, magnitude = __builtin_fabsf(y);
    int level = 0;
    while (level < n_levels - 1 && magnitude >= (traits.levels[level] + traits.levels[level + 1]) / 2) ++level;
    squares += traits.levels[level] * traits.levels[level];
    put_code(traits, row, first + i, uint32_t(level | (y < 0 ? n_levels : 0)));
  }
  const uint16_t scale = f32_to_f16(length > 1e-10f ? length / __builtin_sqrtf(squares) : length);
  for (int i = 0; i < n; i += scale_group) row.scales[(first + i) / scale_group] = scale;
}

// Stores x[head_dim] in a slot. Rotated types store the rotated values.
LB_FN void store_row(KvType type, const float* x, int head_dim, uint8_t* head, int slot) {
  const KvTraits& traits = kKvTraits[int(type)];
  const KvRow row = kv_row(type, head_dim, head, slot);
  const int rotated = rotated_group(head_dim);
  float group[kRotatedGroup];
  for (int first = 0; first < head_dim; first += rotated) switch (traits.code) {
      case KvCode::kNumber:
        for (int i = first; i < first + rotated && i < head_dim; ++i)
          if (type == KvType::kF32)
            reinterpret_cast<float*>(row.codes)[i] = x[i];
          else if (type == KvType::kFp8)
            put_bits(row.codes, i, 8, f32_to_fp8(x[i]));
          else
            reinterpret_cast<uint16_t*>(row.codes)[i] = type == KvType::kF16 ? f32_to_f16(x[i]) : f32_to_bf16(x[i]);
        break;
      case KvCode::kLevel:
        for (int i = 0; i < rotated; ++i) group[i] = x[first + i];
        store_levels(traits, group, rotated, scale_group(type, head_dim), row, first);
        break;
      default:
        for (int i = first; i < first + rotated; i += 32) store_block(traits, x + i, row, i);
    }
}

// Loads the values of a slot; a rotated type gives the rotated values.
LB_FN void load_row(KvType type, const uint8_t* head, int slot, int head_dim, float* x) {
  const KvTraits& traits = kKvTraits[int(type)];
  const KvRow row = kv_row(type, head_dim, const_cast<uint8_t*>(head), slot);
  const int group = scale_group(type, head_dim), half = 1 << (traits.bits - 1);
  for (int i = 0; i < head_dim; ++i) {
    if (traits.code == KvCode::kNumber) {
      if (type == KvType::kF32)
        x[i] = reinterpret_cast<const float*>(row.codes)[i];
      else if (type == KvType::kFp8)
        x[i] = fp8_to_f32(uint8_t(get_bits(row.codes, i, 8)));
      else if (type == KvType::kF16)
        x[i] = f16_to_f32(reinterpret_cast<const uint16_t*>(row.codes)[i]);
      else
        x[i] = bf16_to_f32(reinterpret_cast<const uint16_t*>(row.codes)[i]);
      continue;
    }
    const uint32_t code = get_code(traits, row, i);
    if (traits.code == KvCode::kMinimum) {
      x[i] = float(code) * f16_to_f32(row.scales[2 * (i / group)]) + f16_to_f32(row.scales[2 * (i / group) + 1]);
    } else {
      const float scale = f16_to_f32(row.scales[i / group]);
      if (traits.code == KvCode::kOffset)
        x[i] = float(int(code) - half) * scale;
      else
        x[i] = traits.levels[code & (half - 1)] * (code & half ? -scale : scale);
    }
  }
}

}  // namespace lb::quant
