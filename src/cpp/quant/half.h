// Converts f16 and bf16 to fp32 exactly, and fp32 to them with round to nearest even. NaN stays NaN.
// LB_FN declares the functions of quant/. On the host they have internal linkage, because files compiled for one
// instruction set include them (see cpu/kernels.h). LB_TABLE declares tables that kernels index. A device dialect
// defines both first, with its qualifiers.
#pragma once

#include <stdint.h>

#ifndef LB_FN
#define LB_FN [[maybe_unused]] static inline
#endif
#ifndef LB_TABLE
#define LB_TABLE
#endif

namespace lb::quant {

LB_FN uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
LB_FN float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

LB_FN float f16_to_f32(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16;
  const uint32_t magnitude = h & 0x7fff;
  if (magnitude >= 0x7c00) return float_of(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);  // infinity, NaN
  if (magnitude >= 0x0400) return float_of(sign | ((magnitude << 13) + (112u << 23)));
  return float_of(sign | bits_of(float(magnitude) * 0x1p-24f));  // subnormal: the mantissa counts units of 2^-24
}

LB_FN uint16_t f32_to_f16(float x) {
  const uint32_t sign = bits_of(x) >> 16 & 0x8000;
  const uint32_t magnitude = bits_of(x) & 0x7fffffff;
  if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);  // magnitudes of 65520 or more round to infinity
  if (magnitude < 0x38800000)  // below 2^-14: adding 1/2 leaves units of 2^-24 in the low bits, rounded by the addition
    return uint16_t(sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3f000000));
  const uint32_t odd = magnitude >> 13 & 1;
  return uint16_t(sign | (magnitude - (112u << 23) + 0xfff + odd) >> 13);
}

LB_FN float bf16_to_f32(uint16_t h) { return float_of(uint32_t(h) << 16); }

LB_FN uint16_t f32_to_bf16(float x) {
  const uint32_t bits = bits_of(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace lb::quant
