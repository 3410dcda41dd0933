// Scales of the weight types with one scale per 32 values, from the last plane of quant/planes.h: value = scale * code
// + offset, as in quant/dequantize.h. An entry of the plane is one of: d (f16); d and m (f16 each, in one word); e (a
// byte); six-bit scales, or scales and mins, of eight blocks.
#pragma once

#include "quant/dequantize.h"
#include "quant/planes.h"

namespace lb::gpu {

template <DType kType>
LB_DEVICE auto scale_entry() {
  if constexpr (kType == DType::kMXFP4) {
    return uint8_t{};
  } else if constexpr (kType == DType::kQ4_1 || kType == DType::kQ5_1) {
    return uint32_t{};  // not two f16: the compiler would split them at the load, and so wait for the load there
  } else if constexpr (kType == DType::kIQ4_XS) {
    return u32x2{};
  } else if constexpr (kType == DType::kQ4_K || kType == DType::kQ5_K) {
    return u32x4{};
  } else {
    static_assert(kType == DType::kQ8_0 || kType == DType::kQ4_0 || kType == DType::kQ5_0 || kType == DType::kIQ4_NL);
    return f16{};
  }
}
template <DType kType>
using ScaleEntry = decltype(scale_entry<kType>());

template <DType kType>
inline constexpr bool kHasOffsets =
    kType == DType::kQ4_1 || kType == DType::kQ5_1 || kType == DType::kQ4_K || kType == DType::kQ5_K;

// e4m3 numbers on a device. An f16 with the bits of such a number at their places is 2^-8 times the number.
inline constexpr float kE4m3Unit = 256;
LB_DEVICE f16 e4m3_bits(uint32_t x) { return f16{uint16_t((x & 0x80) << 8 | (x & 0x7f) << 7)}; }
// Numbers 0 and 2 of a word of four, or 1 and 3.
LB_DEVICE uint32_t e4m3_pair(uint32_t word, int odd) {
  const uint32_t high = odd ? word : word << 8;
  return (high & 0x80008000u) | (high >> 1 & 0x3f803f80u);
}
LB_DEVICE float from_e4m3(uint32_t x) { return kE4m3Unit * to_f32(e4m3_bits(x)); }

// Scale and offset of block `block` of the 1 or 8 blocks that an entry covers.
LB_DEVICE quant::ScaleOffset block_scale(f16 d, int) { return {to_f32(d), 0}; }
LB_DEVICE quant::ScaleOffset block_scale(uint32_t d_m, int) {
  return {to_f32(f16{uint16_t(d_m)}), to_f32(f16{uint16_t(d_m >> 16)})};
}
LB_DEVICE quant::ScaleOffset block_scale(uint8_t e, int) { return {quant::mxfp4_scale(e), 0}; }
LB_DEVICE quant::ScaleOffset block_scale(const u32x2& six_bits, int block) {
  const float d = to_f32(f16{quant::six_bit_d(six_bits[0], six_bits[1])});
  return {d * float(quant::six_bit_scale(block < 4 ? six_bits[0] : six_bits[1], block % 4)), 0};
}
LB_DEVICE quant::ScaleOffset block_scale(const u32x4& k4, int block) {
  const uint32_t fields = quant::k4_fields(k4.v, block);
  const float d = to_f32(f16{uint16_t(k4[0])}), dmin = to_f32(f16{uint16_t(k4[0] >> 16)});
  return {d * float(fields & 63), -(dmin * float(fields >> 6))};
}

}  // namespace lb::gpu
