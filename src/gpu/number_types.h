// Storage types of 16 and 8 bits, and fp8 conversions in integer arithmetic for chips without a conversion instruction.
#pragma once

#include <stdint.h>

#include "quant/half.h"

namespace lb::gpu {

struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};
struct fp8_e4m3 {  // 1 sign, 4 exponent (bias 7), 3 mantissa; 0x7f and 0xff are NaN, no infinity, largest 448
  uint8_t bits;
};
struct alignas(4) f16x2 {
  f16 lo, hi;
};

namespace portable {

LB_DEVICE float fp8_to_f32(uint8_t x) {
  const uint32_t sign = uint32_t(x & 0x80) << 24;
  const uint32_t magnitude = x & 0x7f;
  if (magnitude == 0x7f) return quant::float_of(sign | 0x7fc00000);
  if (magnitude >= 8) return quant::float_of(sign | ((magnitude << 20) + (120u << 23)));
  return quant::float_of(sign | quant::bits_of(float(magnitude) * 0x1p-9f));  // subnormal: units of 2^-9
}

// Rounds to nearest even and saturates at +-448; infinity becomes 448, NaN stays NaN.
LB_DEVICE uint8_t f32_to_fp8(float x) {
  const uint8_t sign = uint8_t(quant::bits_of(x) >> 24 & 0x80);
  const uint32_t magnitude = quant::bits_of(x) & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7f;
  if (magnitude >= 0x43e00000) return sign | 0x7e;
  if (magnitude < 0x3c800000)  // below 2^-6: adding 2^14 rounds to units of 2^-9 and leaves them in the low bits
    return uint8_t(sign | (quant::bits_of(quant::float_of(magnitude) + 0x1p14f) - 0x46800000));
  return uint8_t(sign | (magnitude - (120u << 23) + 0x7ffff + (magnitude >> 20 & 1)) >> 20);
}

}  // namespace portable
}  // namespace lb::gpu
