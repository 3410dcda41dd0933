// Dequantises GGML blocks in plain C++: the reference for every faster version.
// dequantize() gives the same bits as gguf-py's dequantize.
#pragma once

#include "quant/blocks.h"
#include "quant/half.h"

namespace lb::quant {

// The scale and offset of a sub-block: value = scale * q + offset. The offset is 0 when the type has no mins.
struct ScaleOffset {
  float scale, offset;
};

// unpack(block, i, q) writes the signed codes of sub-block i to q [kSub] and returns the sub-block's scale and offset.

LB_FN ScaleOffset unpack(const BlockQ4_0& b, int, int8_t* q) {
  for (int j = 0; j < 16; ++j) {
    q[j] = int8_t((b.qs[j] & 15) - 8);
    q[j + 16] = int8_t((b.qs[j] >> 4) - 8);
  }
  return {f16_to_f32(b.d), 0};
}

LB_FN ScaleOffset unpack(const BlockQ4_1& b, int, int8_t* q) {
  for (int j = 0; j < 16; ++j) {
    q[j] = int8_t(b.qs[j] & 15);
    q[j + 16] = int8_t(b.qs[j] >> 4);
  }
  return {f16_to_f32(b.d), f16_to_f32(b.m)};
}

LB_FN ScaleOffset unpack(const BlockQ5_0& b, int, int8_t* q) {
  for (int j = 0; j < 16; ++j) {
    q[j] = int8_t(((b.qs[j] & 15) | (b.qh[j / 8] >> (j % 8) & 1) << 4) - 16);
    q[j + 16] = int8_t(((b.qs[j] >> 4) | (b.qh[2 + j / 8] >> (j % 8) & 1) << 4) - 16);
  }
  return {f16_to_f32(b.d), 0};
}

LB_FN ScaleOffset unpack(const BlockQ5_1& b, int, int8_t* q) {
  for (int j = 0; j < 16; ++j) {
    q[j] = int8_t((b.qs[j] & 15) | (b.qh[j / 8] >> (j % 8) & 1) << 4);
    q[j + 16] = int8_t((b.qs[j] >> 4) | (b.qh[2 + j / 8] >> (j % 8) & 1) << 4);
  }
  return {f16_to_f32(b.d), f16_to_f32(b.m)};
}

LB_FN ScaleOffset unpack(const BlockQ8_0& b, int, int8_t* q) {
  for (int j = 0; j < 32; ++j) q[j] = b.q[j];
  return {f16_to_f32(b.d), 0};
}

LB_FN ScaleOffset unpack(const BlockQ2_K& b, int i, int8_t* q) {
  const uint8_t* qs = b.qs + 32 * (i / 8) + 16 * (i % 2);
  const int shift = 2 * (i / 2 % 4);
  for (int l = 0; l < 16; ++l) q[l] = int8_t(qs[l] >> shift & 3);
  return {f16_to_f32(b.d) * float(b.scales[i] & 15), -(f16_to_f32(b.dmin) * float(b.scales[i] >> 4))};
}

LB_FN ScaleOffset unpack(const BlockQ3_K& b, int i, int8_t* q) {
  const uint8_t* qs = b.qs + 32 * (i / 8) + 16 * (i % 2);
  const uint8_t* hmask = b.hmask + 16 * (i % 2);
  const int group = i / 2;  // of 32 values
  const int shift = 2 * (group % 4);
  for (int l = 0; l < 16; ++l) q[l] = int8_t((qs[l] >> shift & 3) + 4 * (hmask[l] >> group & 1) - 4);
  const int scale = (b.scales[i % 8] >> 4 * (i / 8) & 15) | (b.scales[8 + i % 4] >> 2 * (i / 4) & 3) << 4;
  return {f16_to_f32(b.d) * float(scale - 32), 0};
}

// Scale and offset of sub-block j from the 12 bytes of scales of Q4_K and Q5_K.
LB_FN ScaleOffset k4_scale(float d, float dmin, const uint8_t* s, int j) {
  const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
  const int min = j < 4 ? s[j + 4] & 63 : (s[j + 4] >> 4) | (s[j] >> 6) << 4;
  return {d * float(scale), -(dmin * float(min))};
}

LB_FN ScaleOffset unpack(const BlockQ4_K& b, int j, int8_t* q) {
  const uint8_t* qs = b.qs + 32 * (j / 2);
  const int shift = 4 * (j % 2);
  for (int l = 0; l < 32; ++l) q[l] = int8_t(qs[l] >> shift & 15);
  return k4_scale(f16_to_f32(b.d), f16_to_f32(b.dmin), b.scales, j);
}

LB_FN ScaleOffset unpack(const BlockQ5_K& b, int j, int8_t* q) {
  const uint8_t* qs = b.qs + 32 * (j / 2);
  const int shift = 4 * (j % 2);
  for (int l = 0; l < 32; ++l) q[l] = int8_t((qs[l] >> shift & 15) | (b.qh[l] >> j & 1) << 4);
  return k4_scale(f16_to_f32(b.d), f16_to_f32(b.dmin), b.scales, j);
}

LB_FN ScaleOffset unpack(const BlockQ6_K& b, int i, int8_t* q) {
  const int half = i / 8, group = i / 2 % 4, l0 = 16 * (i % 2);  // groups of 32 values
  const uint8_t* ql = b.ql + 64 * half + 32 * (group % 2) + l0;
  const uint8_t* qh = b.qh + 32 * half + l0;
  const int low_shift = 4 * (group / 2), high_shift = 2 * group;
  for (int l = 0; l < 16; ++l) q[l] = int8_t(((ql[l] >> low_shift & 15) | (qh[l] >> high_shift & 3) << 4) - 32);
  return {f16_to_f32(b.d) * float(b.scales[i]), 0};
}

LB_FN ScaleOffset unpack(const BlockIQ4_NL& b, int, int8_t* q) {
  for (int j = 0; j < 16; ++j) {
    q[j] = kIq4Values[b.qs[j] & 15];
    q[j + 16] = kIq4Values[b.qs[j] >> 4];
  }
  return {f16_to_f32(b.d), 0};
}

LB_FN ScaleOffset unpack(const BlockIQ4_XS& b, int i, int8_t* q) {
  const uint8_t* qs = b.qs + 16 * i;
  for (int j = 0; j < 16; ++j) {
    q[j] = kIq4Values[qs[j] & 15];
    q[j + 16] = kIq4Values[qs[j] >> 4];
  }
  const int scale = (b.scales_l[i / 2] >> 4 * (i % 2) & 15) | (b.scales_h[i / 4] >> 2 * (i % 4) & 3) << 4;
  return {f16_to_f32(b.d) * float(scale - 32), 0};
}

// Returns 2^(e - 128); the two smallest values are subnormal.
LB_FN float mxfp4_scale(uint8_t e) { return float_of(e < 2 ? 0x00200000u << e : uint32_t(e - 1) << 23); }

LB_FN ScaleOffset unpack(const BlockMXFP4& b, int, int8_t* q) {
  for (int j = 0; j < 16; ++j) {
    q[j] = kMxfp4Values[b.qs[j] & 15];
    q[j + 16] = kMxfp4Values[b.qs[j] >> 4];
  }
  return {mxfp4_scale(b.e), 0};
}

// Half of an unsigned e4m3 number; 0x7f, its NaN, counts as 0.
LB_FN float half_of_e4m3(uint8_t x) {
  const int exponent = x >> 3 & 15, fraction = x & 7;
  if (x == 0x7f) return 0;
  if (exponent == 0) return float(fraction) * 0x1p-10f;
  return float(8 + fraction) * float_of(uint32_t(exponent - 11 + 127) << 23);
}

LB_FN ScaleOffset unpack(const BlockNVFP4& b, int i, int8_t* q) {
  for (int j = 0; j < 8; ++j) {
    q[j] = kMxfp4Values[b.qs[i][j] & 15];
    q[j + 8] = kMxfp4Values[b.qs[i][j] >> 4];
  }
  return {half_of_e4m3(b.d[i]), 0};
}

// The bits of an e4m3 number at their places in an fp32 number are 2^-120 times the number; NaN counts as 480.
LB_FN float e4m3_value(uint8_t x) { return 0x1p120f * float_of(uint32_t(x & 0x80) << 24 | uint32_t(x & 0x7f) << 20); }

// The scale of a sub-block times its tensor's scale, rounded as the tools that write these files do.
LB_FN float scaled(float scale, const ScaledHeader& by) {
  return by.divisor != 0 ? scale / by.divisor : scale * by.factor;
}

// y [kValues] <- the values of a block.
template <class Block>
LB_FN void dequantize(const Block& b, float* y) {
  for (int i = 0; i < Block::kValues / Block::kSub; ++i, y += Block::kSub) {
    int8_t q[Block::kSub];
    const ScaleOffset sub = unpack(b, i, q);
    for (int l = 0; l < Block::kSub; ++l) {
      y[l] = sub.scale * float(q[l]);
      if constexpr (Block::kHasMin) y[l] += sub.offset;
    }
  }
}

}  // namespace lb::quant
