// Pairs of codes as f16 numbers, two per register.
#pragma once

#include "pairs.h"

namespace lb::gpu {

LB_DEVICE f16x2 pair_of(uint32_t bits) { return __builtin_bit_cast(f16x2, bits); }
LB_DEVICE uint32_t pair_bits(f16x2 pair) { return __builtin_bit_cast(uint32_t, pair); }

LB_DEVICE constexpr uint32_t twice(uint32_t half) { return half | half << 16; }

// Two numbers below 1024, in bits 0..9 and 16..25, minus kOff, as f16. Or-ing 0x6400 gives 1024 + number.
template <int kOff>
LB_DEVICE f16x2 small_pair(uint32_t bits) {
  return fma2(pair_of(bits | twice(0x6400)), pair_of(twice(0x3c00)), pair_of(twice(0xe400 + kOff)));
}
// The nibbles in bits 0..3 and 16..19, or in bits 4..7 and 20..23, minus kOff, as f16. 0x6400 gives 1024 + nibble, or
// 1024 + 16 * nibble.
template <int kOff>
LB_DEVICE f16x2 low_nibble_pair(uint32_t bits) {
  return add2(pair_of(and_xor(bits, 0x000f000fu, twice(0x6400))), pair_of(twice(0xe400 + kOff)));
}
template <int kOff>
LB_DEVICE f16x2 high_nibble_pair(uint32_t bits) {
  const uint32_t numbers = and_xor(bits, 0x00f000f0u, twice(0x6400));
  return fma2(pair_of(numbers), pair_of(twice(0x2c00)), pair_of(twice(0xd400 + 16 * kOff)));
}

// A pair of codes from four bytes that hold code + kOff, or the code itself, signed: bytes 0 and 2, or 1 and 3.
template <int kOff>
LB_DEVICE f16x2 byte_pair(uint32_t bytes, int odd) {
  const uint32_t numbers = and_xor(odd ? bytes >> 8 : bytes, 0x00ff00ffu, twice(0x6400));
  return add2(pair_of(numbers), pair_of(twice(0xe400 + kOff)));
}
LB_DEVICE f16x2 signed_byte_pair(uint32_t bytes, int odd) {
  const uint32_t numbers = and_xor(odd ? bytes >> 8 : bytes, 0x00ff00ffu, twice(0x6480));  // 1024 + 128 + code
  return add2(pair_of(numbers), pair_of(twice(0xe480)));
}

}  // namespace lb::gpu
