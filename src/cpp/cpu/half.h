// 16-bit floats in plain integer arithmetic, rounding to nearest even.
// Everything is static: files of every instruction set include this (see kernels.h).
#pragma once

#include <cstdint>

namespace lb::cpu {

[[maybe_unused]] static inline float f32_from_bf16(uint16_t x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x) << 16);
}

[[maybe_unused]] static inline uint16_t bf16_from_f32(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40);  // keep NaN a NaN
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

[[maybe_unused]] static inline float f32_from_f16(uint16_t x) {
  const uint32_t sign = (x & 0x8000u) << 16;
  const uint32_t exponent = x >> 10 & 31;
  const uint32_t mantissa = x & 0x3ff;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, magnitude) | sign);
  }
  const uint32_t wide = exponent == 31 ? 255 : exponent + 112;
  return __builtin_bit_cast(float, sign | wide << 23 | mantissa << 13);
}

[[maybe_unused]] static inline uint16_t f16_from_f32(float x) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, x);
  const uint32_t sign = bits >> 16 & 0x8000;
  uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x1ff));
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);  // 65520 and above round to infinity
  if (magnitude < 0x38800000) {
    // Below 2^-14 the result is a multiple of 2^-24, the last place of 0.5: the addition rounds.
    const float shifted = __builtin_bit_cast(float, magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (__builtin_bit_cast(uint32_t, shifted) - 0x3f000000u));
  }
  magnitude += 0xc8000fffu + (magnitude >> 13 & 1);  // exponent bias 127 -> 15, and the rounding
  return static_cast<uint16_t>(sign | magnitude >> 13);
}

}  // namespace lb::cpu
