// Types whose four bits name a value of a table: bytes of it by the dialect's lookup8, which knows eight, none of them
// negative. One half of each table has no negative value, the other no positive one.
#pragma once

#include "gpu/vectors.h"
#include "quant/blocks.h"

namespace lb::gpu {

template <DType kType>
inline constexpr bool kHasTable = kType == DType::kIQ4_NL || kType == DType::kIQ4_XS || kType == DType::kMXFP4;

// Of eight values of a table.
LB_DEVICE u32x2 magnitude_bytes(const int8_t* values) {
  u32x2 words = {};
  LB_UNROLL
  for (int i = 0; i < 8; ++i) words[i / 4] |= uint32_t(values[i] < 0 ? -values[i] : values[i]) << 8 * (i % 4);
  return words;
}

// Of eight codes the magnitudes of those below 8, and of the others; else 0.
struct Magnitudes {
  u32x2 first, second;
};
template <DType kType>
LB_DEVICE Magnitudes look_up(uint32_t codes) {
  const int8_t* values = kType == DType::kMXFP4 ? quant::kMxfp4Values : quant::kIq4Values;
  return {lookup8(magnitude_bytes(values), codes), lookup8(magnitude_bytes(values + 8), codes ^ 0x88888888u)};
}

}  // namespace lb::gpu
