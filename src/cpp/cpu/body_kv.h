// Vector bodies that read and write KV types, bit-identical to quant/kv_rows.h. Two ways to read a page:
//   load_slots      a lane is a value of a row: fp32 rows in the order of values
//   transpose_slots a lane is a slot: words of codes are transposed, not values, and every shift is a constant
// Products of a code and an f16 scale are exact in fp32, so both ways, with or without fma, give the same bits.
// Products with levels round once.
#pragma once

#include "cpu/simd.h"
#include "quant/kv_rows.h"

namespace lb::cpu {
namespace {

template <KvType kType>
struct Coded {
  static constexpr KvType kKv = kType;
  static constexpr KvTraits kTraits = kKvTraits[int(kType)];
  static constexpr int kWordCodes = 32 / kTraits.low_bits, kLowMask = (1 << kTraits.low_bits) - 1;
  static constexpr int kHalf = 1 << (kTraits.bits - 1);
  static constexpr bool kHasHigh = kTraits.bits > kTraits.low_bits, kHasMinimum = kTraits.code == KvCode::kMinimum;
};

// Calls body(Coded<type>{}), for all types except f32, f16 and bf16.
template <class Body>
inline auto with_codes(KvType type, Body&& body) {
  switch (type) {
    case KvType::kFp8: return body(Coded<KvType::kFp8>{});
    case KvType::kQ8_0: return body(Coded<KvType::kQ8_0>{});
    case KvType::kQ5_1: return body(Coded<KvType::kQ5_1>{});
    case KvType::kQ5_0: return body(Coded<KvType::kQ5_0>{});
    case KvType::kQ4_1: return body(Coded<KvType::kQ4_1>{});
    case KvType::kQ4_0: return body(Coded<KvType::kQ4_0>{});
    case KvType::kTQ3_0: return body(Coded<KvType::kTQ3_0>{});
    case KvType::kWHT4: return body(Coded<KvType::kWHT4>{});
    default: return body(Coded<KvType::kWHT3>{});
  }
}

inline vf to_float(vi x) { return __builtin_convertvector(x, vf); }

// The value of an e4m3 code. A subnormal number is computed as a normal one minus 2^-6, the implicit leading one, so no
// operand is subnormal in fp32.
inline vf fp8_value(vi code) {
  const vi magnitude = code & 0x7f, is_small = magnitude < 8;
  const vi bits = ((magnitude + (is_small & 8)) << 20) + (120 << 23);
  const vf value = __builtin_bit_cast(vf, bits) - __builtin_bit_cast(vf, is_small & 0x3c800000);  // 2^-6
  const vi is_nan = magnitude == 0x7f;
  return __builtin_bit_cast(vf, __builtin_bit_cast(vi, value) | (code & 0x80) << 24 | (is_nan & 0x7fc00000));
}

// The signed levels of every code; 3-bit types have their levels twice.
template <KvType kType>
struct SignedLevels {
  float at[16];
  constexpr SignedLevels() : at{} {
    constexpr int half = Coded<kType>::kHalf;
    for (int i = 0; i < 16; ++i) {
      const float level = kKvTraits[int(kType)].levels[i % half];
      at[i] = i & half ? -level : level;
    }
  }
};

template <KvType kType>
inline vf level_of(vi code) {
  static constexpr SignedLevels<kType> kLevels;
#if defined(__AVX512F__)
  return _mm512_permutexvar_ps(__builtin_bit_cast(__m512i, code), load(kLevels.at));
#elif defined(__AVX2__)
  const vf level = _mm256_permutevar8x32_ps(load(kLevels.at), __builtin_bit_cast(__m256i, code));  // of 3 bits
  return Coded<kType>::kHalf < 8 ? level : __builtin_bit_cast(vf, __builtin_bit_cast(vi, level) ^ (code & 8) << 28);
#else
  vf level;
  for (int i = 0; i < kLanes; ++i) level[i] = kLevels.at[code[i]];
  return level;
#endif
}

template <class Code>
inline vf value_of(vi code, vf scale, vf minimum) {
  constexpr KvCode kCode = Code::kTraits.code;
  if constexpr (kCode == KvCode::kNumber) return fp8_value(code);
  if constexpr (kCode == KvCode::kOffset) return to_float(code - Code::kHalf) * scale;
  if constexpr (kCode == KvCode::kMinimum) return fma(to_float(code), scale, minimum);
  if constexpr (kCode == KvCode::kLevel) return level_of<Code::kKv>(code) * scale;
}

// Loads kLanes / kEach words and repeats each in kEach lanes. With AVX2 these are 2 or 4 words, loaded by intrinsics:
// other ways to load them pass through memory.
template <int kEach>
inline vi repeat_words(const uint8_t* at) {
  vi index = {};
  for (int lane = 0; lane < kLanes; ++lane) index[lane] = lane / kEach;
#if defined(__AVX2__)
  static_assert(kLanes / kEach == 2 || kLanes / kEach == 4);
  const __m128i* from = reinterpret_cast<const __m128i*>(at);
  const __m128i words = kLanes / kEach == 2 ? _mm_loadl_epi64(from) : _mm_loadu_si128(from);
#endif
#if defined(__AVX512F__)
  return __builtin_bit_cast(
      vi, _mm512_permutexvar_epi32(__builtin_bit_cast(__m512i, index), _mm512_castsi128_si512(words)));
#elif defined(__AVX2__)
  return __builtin_bit_cast(
      vi, _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(words), __builtin_bit_cast(__m256i, index)));
#else
  int32_t words[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) __builtin_memcpy(words + lane, at + 4 * index[lane], 4);
  vi repeated;
  __builtin_memcpy(&repeated, words, sizeof repeated);
  return repeated;
#endif
}

// The kBits-bit codes of values [i, i + kLanes) of a row; i is a multiple of kLanes.
template <int kBits>
inline vi codes_at(const uint8_t* row, int i) {
  constexpr int kWordCodes = 32 / kBits;
  const uint8_t* at = row + i / kWordCodes * 4;
  vi shifts = {}, words;
  for (int lane = 0; lane < kLanes; ++lane) shifts[lane] = kv_code_shift(lane, kBits);
  if constexpr (kWordCodes >= kLanes) {
    int32_t word;
    __builtin_memcpy(&word, at, sizeof word);
    words = splat(word);
    shifts += i % kWordCodes / 2 * kBits;
  } else {
    words = repeat_words<kWordCodes>(at);
  }
  return words >> shifts & ((1 << kBits) - 1);
}

// The scales of n_slots slots of a page as fp32, in the order of the plane.
constexpr int kMaxScales = kMaxKeyDim / 32 * 2;  // per slot
template <class Code>
inline void load_scales(const uint8_t* head, int dim, int slot, int n_slots, float* to) {
  const KvRowBytes bytes = kv_row_bytes(Code::kKv, dim);
  const Half* from =
      reinterpret_cast<const Half*>(head + kPageSlots * (bytes.codes + bytes.high)) + slot * bytes.scales / 2;
  const int n = n_slots * bytes.scales / 2;
  for (int i = 0; i < n; i += kLanes) store(to + i, load(from + i, n - i), n - i);
}

// Writes n_slots slots of a page as fp32 to to[n_slots, dim].
template <class Code>
inline void load_slots(const uint8_t* head, int dim, int slot, int n_slots, float* to) {
  const KvRowBytes bytes = kv_row_bytes(Code::kKv, dim);
  const int group = scale_group(Code::kKv, dim), n_scales = bytes.scales / 2;
  float scales[kPageSlots * kMaxScales];
  load_scales<Code>(head, dim, slot, n_slots, scales);
  const uint8_t *codes = head + slot * bytes.codes, *high = head + kPageSlots * bytes.codes + slot * bytes.high;
  const float* scale = scales;
  for (int s = 0; s < n_slots; ++s, codes += bytes.codes, high += bytes.high, scale += n_scales, to += dim)
    for (int first = 0; first < dim; first += 32) {
      vf factor = {}, minimum = {};
      if constexpr (Code::kHasMinimum) {
        factor = splat(scale[first / 32 * 2]);
        minimum = splat(scale[first / 32 * 2 + 1]);
      } else if constexpr (Code::kTraits.scale_group > 0) {
        factor = splat(scale[first / group]);
      }
      for (int i = first; i < first + 32; i += kLanes) {
        vi code = codes_at<Code::kTraits.low_bits>(codes, i);
        if constexpr (Code::kHasHigh) code |= codes_at<1>(high, i) << Code::kTraits.low_bits;
        store(to + i, value_of<Code>(code, factor, minimum));
      }
    }
}

// Writes n_slots slots of a page, transposed, to to[dim, kPageSlots]; pads the last vector with zeros.
template <class Code>
inline void transpose_slots(const uint8_t* head, int dim, int slot, int n_slots, float* to) {
  const KvRowBytes bytes = kv_row_bytes(Code::kKv, dim);
  const int group = scale_group(Code::kKv, dim), n_scales = bytes.scales / 2;
  float scales[kPageSlots * kMaxScales];
  load_scales<Code>(head, dim, slot, n_slots, scales);
  const uint8_t *codes = head + slot * bytes.codes, *highs = head + kPageSlots * bytes.codes + slot * bytes.high;
  // Words [first, first + kLanes) of kLanes rows: words[j] has word first + j of each slot.
  const auto transpose_words = [n_slots](const uint8_t* plane, int row_bytes, int s, int first, vi* words) {
    vf rows[kLanes];
    for (int i = 0; i < kLanes; ++i)
      rows[i] = s + i < n_slots
                    ? load(reinterpret_cast<const float*>(plane + (s + i) * row_bytes) + first, row_bytes / 4 - first)
                    : vf{};
    transpose(rows);
    for (int i = 0; i < kLanes; ++i) words[i] = __builtin_bit_cast(vi, rows[i]);
  };
  const auto scales_of = [&](int s, int i) {
    vf x = {};
    for (int lane = 0; lane < kLanes && s + lane < n_slots; ++lane) x[lane] = scales[(s + lane) * n_scales + i];
    return x;
  };
  for (int s = 0; s < n_slots; s += kLanes) {
    vi high[(kMaxKeyDim / 32 + kLanes - 1) / kLanes * kLanes];
    if constexpr (Code::kHasHigh)
      for (int first = 0; first < dim / 32; first += kLanes) transpose_words(highs, bytes.high, s, first, high + first);
    vf factor = {}, minimum = {};
    for (int first = 0, n_words = dim / Code::kWordCodes; first < n_words; first += kLanes) {
      vi words[kLanes];
      transpose_words(codes, bytes.codes, s, first, words);
      for (int j = 0; j < kLanes && first + j < n_words; ++j) {
        const int value = (first + j) * Code::kWordCodes;
        if constexpr (Code::kHasMinimum) {
          if (value % 32 == 0) factor = scales_of(s, value / 32 * 2), minimum = scales_of(s, value / 32 * 2 + 1);
        } else if constexpr (Code::kTraits.scale_group > 0) {
          if (value % group == 0) factor = scales_of(s, value / group);
        }
        for (int k = 0; k < Code::kWordCodes; ++k) {
          vi code = words[j] >> kv_code_shift(k, Code::kTraits.low_bits) & Code::kLowMask;
          if constexpr (Code::kHasHigh)
            code |= (high[value / 32] >> kv_code_shift(value % 32 + k, 1) & 1) << Code::kTraits.low_bits;
          store(to + (value + k) * kPageSlots + s, value_of<Code>(code, factor, minimum));
        }
      }
    }
  }
}

}  // namespace
}  // namespace lb::cpu
