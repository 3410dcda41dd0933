// KV types: the table of their traits, the layout of a page, and the arithmetic of codes.
//
// A page of a KV head holds 64 slots of head_dim values, as up to three planes, each with a row per slot:
//   codes     [64][head_dim * low_bits / 8]    the low bits of each code
//   high      [64][head_dim / 8]               the highest bit of 5-bit and 3-bit codes
//   scales    [64][n_scales]                   f16 numbers of each group of 32 or 128 values
// Every plane starts at a multiple of 16 bytes, for any head_dim. Codes narrower than 16 bits fill 32-bit words: the
// word's even values start at bit 0, its odd values at bit 16. So one shift and one mask extract two neighbouring
// values, one in each half of the word.
//
// Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1 have the arithmetic of the GGML blocks with these names. The rotated types follow
// TurboQuant's scalar quantiser. A group of up to 128 values is rotated (rotation.h), so that all values have about the
// same distribution, and each rotated value is rounded to the nearest level of a Lloyd-Max codebook. tq3_0 keeps one
// scale per 32 values, wht3 and wht4 one per group.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "quant/half.h"  // LB_FN

namespace lb {

enum class KvType : uint8_t { kF32, kF16, kBF16, kFp8, kQ8_0, kQ5_1, kQ5_0, kQ4_1, kQ4_0, kTQ3_0, kWHT4, kWHT3 };
inline constexpr int kKvTypeCount = 12;

// How an n-bit code encodes a value.
enum class KvCode : uint8_t {
  kNumber,   // the number itself: f32, f16, bf16, e4m3
  kOffset,   // (code - 2^(n - 1)) scale
  kMinimum,  // code scale + minimum
  kLevel,    // the highest bit is the sign, the others index magnitudes: +-levels[code] scale
};

struct KvTraits {
  const char* name;
  uint8_t bits, low_bits;  // bits of a code, and of its part in the plane of codes
  KvCode code;
  uint8_t scale_group;  // values that share a scale; 0: no scales; kRotatedGroup: a rotated group
  float levels[8];      // kLevel: the magnitudes, ascending
  float unit = 1;       // kLevel: the scale that suits coordinates of a unit vector of 128 values
};
inline constexpr int kRotatedGroup = 128;

// Lloyd-Max levels for a coordinate of a random unit vector in 128 dimensions. tq3_0 has the levels that other
// implementations of the format use. The others are rounded to integers, which raises the squared error by at most
// 0.05 %. The factor 256 keeps small scales out of f16's subnormal range.
LB_TABLE constexpr KvTraits kKvTraits[kKvTypeCount] = {
    {"f32", 32, 32, KvCode::kNumber, 0, {}},
    {"f16", 16, 16, KvCode::kNumber, 0, {}},
    {"bf16", 16, 16, KvCode::kNumber, 0, {}},
    {"fp8", 8, 8, KvCode::kNumber, 0, {}},
    {"q8_0", 8, 8, KvCode::kOffset, 32, {}},
    {"q5_1", 5, 4, KvCode::kMinimum, 32, {}},
    {"q5_0", 5, 4, KvCode::kOffset, 32, {}},
    {"q4_1", 4, 4, KvCode::kMinimum, 32, {}},
    {"q4_0", 4, 4, KvCode::kOffset, 32, {}},
    {"tq3_0", 3, 2, KvCode::kLevel, 32, {0.021460f, 0.065717f, 0.117832f, 0.190685f}, 1},
    {"wht4",
     4,
     4,
     KvCode::kLevel,
     128,
     {5 / 256.0f, 15 / 256.0f, 25 / 256.0f, 36 / 256.0f, 48 / 256.0f, 62 / 256.0f, 79 / 256.0f, 104 / 256.0f},
     0.0022875143f * 256},
    {"wht3", 3, 2, KvCode::kLevel, 128, {13 / 256.0f, 40 / 256.0f, 71 / 256.0f, 113 / 256.0f}, 0.0016663981f * 256},
};

inline constexpr int kPageSlots = 64;  // kPageTokens of the ops
inline constexpr int kMaxHeadDim = 512;
inline constexpr int kMaxKeyTail = 128, kMaxKeyDim = kMaxHeadDim + kMaxKeyTail;  // KvLayer::key_tail

LB_FN constexpr bool is_rotated(KvType type) { return kKvTraits[int(type)].code == KvCode::kLevel; }
// Values that are rotated together: 128, 64 or 32, the largest that divides head_dim.
LB_FN constexpr int rotated_group(int head_dim) { return head_dim % 128 == 0 ? 128 : head_dim % 64 == 0 ? 64 : 32; }
// Whether the type can store heads of head_dim values.
LB_FN constexpr bool has_whole_groups(KvType type, int head_dim) {
  return kKvTraits[int(type)].bits >= 16 || head_dim % 32 == 0;
}

// Values of a tail that holds at least n values of a key: the rows of head_dim values, and those with the tail, consist
// of the same groups.
LB_FN constexpr int key_tail(int head_dim, int n) {
  int tail = (n + 31) / 32 * 32;
  while (rotated_group(head_dim + tail) != rotated_group(head_dim)) tail += 32;
  return tail;
}

// Bytes of a slot's row in each plane.
struct KvRowBytes {
  int codes, high, scales;
};
LB_FN constexpr int scale_group(KvType type, int head_dim) {
  const int group = kKvTraits[int(type)].scale_group;
  return group == kRotatedGroup ? rotated_group(head_dim) : group;
}
LB_FN constexpr KvRowBytes kv_row_bytes(KvType type, int head_dim) {
  const KvTraits& traits = kKvTraits[int(type)];
  const int group = scale_group(type, head_dim), per_group = traits.code == KvCode::kMinimum ? 4 : 2;
  return {head_dim * traits.low_bits / 8, traits.bits > traits.low_bits ? head_dim / 8 : 0,
          group == 0 ? 0 : head_dim / group * per_group};
}
LB_FN constexpr size_t kv_slot_bytes(KvType type, int head_dim) {
  const KvRowBytes bytes = kv_row_bytes(type, head_dim);
  return size_t(bytes.codes + bytes.high + bytes.scales);
}
// A page of a KV head; then the next head's.
LB_FN constexpr size_t kv_head_bytes(KvType type, int head_dim) { return kPageSlots * kv_slot_bytes(type, head_dim); }

// Bit position of value i of a row in its 32-bit word, for `bits`-bit codes.
LB_FN constexpr int kv_code_shift(int i, int bits) {
  const int in_word = i % (32 / bits);
  return in_word / 2 * bits + in_word % 2 * 16;
}

namespace quant {

// One slot's row in the planes of a head's page.
struct KvRow {
  uint8_t *codes, *high;
  uint16_t* scales;
};
LB_FN KvRow kv_row(KvType type, int head_dim, uint8_t* head, int slot) {
  const KvRowBytes bytes = kv_row_bytes(type, head_dim);
  return {head + slot * bytes.codes, head + kPageSlots * bytes.codes + slot * bytes.high,
          reinterpret_cast<uint16_t*>(head + kPageSlots * (bytes.codes + bytes.high) + slot * bytes.scales)};
}

}  // namespace quant
}  // namespace lb
