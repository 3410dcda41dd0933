// Decodes weight types whose 4-bit codes index a table of 16 values (IQ4_NL, IQ4_XS, MXFP4, NVFP4), using the dialect's
// lookup8, which takes a table of eight non-negative bytes. In each table eight values have one sign and eight the
// other, so two lookups of magnitudes plus two signs replace one lookup of values.
#pragma once

#include "gpu/vectors.h"
#include "quant/blocks.h"

namespace lb::gpu {

template <DType kType>
inline constexpr bool kHasFp4 = kType == DType::kMXFP4 || kType == DType::kNVFP4;
template <DType kType>
inline constexpr bool kHasTable = kType == DType::kIQ4_NL || kType == DType::kIQ4_XS || kHasFp4<kType>;

// The magnitudes of eight table values, one byte each.
LB_DEVICE u32x2 magnitude_bytes(const int8_t* values) {
  u32x2 words = {};
  LB_UNROLL
  for (int i = 0; i < 8; ++i) words[i / 4] |= uint32_t(values[i] < 0 ? -values[i] : values[i]) << 8 * (i % 4);
  return words;
}

// Looks up eight 4-bit codes: `first` has the magnitudes of codes below 8, `second` of codes from 8 on. Other bytes are
// 0.
struct Magnitudes {
  u32x2 first, second;
};
template <DType kType>
LB_DEVICE Magnitudes look_up(uint32_t codes) {
  const int8_t* values = kHasFp4<kType> ? quant::kMxfp4Values : quant::kIq4Values;
  return {lookup8(magnitude_bytes(values), codes), lookup8(magnitude_bytes(values + 8), codes ^ 0x88888888u)};
}

}  // namespace lb::gpu
