// Conversions, packed and integer arithmetic. The approximate functions are the C library's.
#pragma once

#include <cmath>

namespace lb::gpu {

inline float to_f32(float x) { return x; }
inline float to_f32(f16 x) { return quant::f16_to_f32(x.bits); }
inline float to_f32(bf16 x) { return quant::bf16_to_f32(x.bits); }
inline float to_f32(fp8_e4m3 x) { return portable::fp8_to_f32(x.bits); }
inline f16 to_f16(float x) { return {quant::f32_to_f16(x)}; }
inline bf16 to_bf16(float x) { return {quant::f32_to_bf16(x)}; }
inline fp8_e4m3 to_fp8(float x) { return {portable::f32_to_fp8(x)}; }

inline f16x2 to_f16x2(float lo, float hi) { return {to_f16(lo), to_f16(hi)}; }

namespace sim {

// a * b + c, rounded once. The product is exact in fp64. An inexact sum is rounded to odd, so that the later roundings
// to 16 bits cannot mistake the sum for a tie.
inline f16 fma_f16(f16 a, f16 b, f16 c) {
  const double product = double(to_f32(a)) * to_f32(b), addend = to_f32(c);
  double sum = product + addend;
  const double part = sum - product;
  const double error = (product - (sum - part)) + (addend - part);
  const auto odd_if = [](bool inexact, auto bits) { return inexact ? bits | 1 : bits; };
  if (error != 0) {  // round to odd: towards zero, then set the last bit
    uint64_t bits = __builtin_bit_cast(uint64_t, sum);
    if ((error < 0) == (sum > 0)) --bits;
    sum = __builtin_bit_cast(double, odd_if(true, bits));
  }
  float narrow = float(sum);
  if (std::isfinite(narrow) && double(narrow) != sum) {
    uint32_t bits = __builtin_bit_cast(uint32_t, narrow);
    if (std::fabs(double(narrow)) > std::fabs(sum)) --bits;
    narrow = __builtin_bit_cast(float, odd_if(true, bits));
  }
  return to_f16(narrow);
}

}  // namespace sim

inline f16x2 fma2(f16x2 a, f16x2 b, f16x2 c) {
  return {sim::fma_f16(a.lo, b.lo, c.lo), sim::fma_f16(a.hi, b.hi, c.hi)};
}

inline int count_bits(uint64_t x) { return __builtin_popcountll(x); }

inline int dot4(int a, int b, int c) {
  uint32_t sum = uint32_t(c);
  for (int shift = 0; shift < 32; shift += 8) sum += uint32_t(int8_t(a >> shift) * int8_t(b >> shift));
  return int(sum);
}
// Like dot4, but the bytes of a are unsigned.
inline int dot4_unsigned(uint32_t a, int b, int c) {
  uint32_t sum = uint32_t(c);
  for (int shift = 0; shift < 32; shift += 8) sum += uint32_t(int(uint8_t(a >> shift)) * int8_t(b >> shift));
  return int(sum);
}

// Selects four of the bytes of a (0 to 3) and b (4 to 7) by the low four nibbles of `which`.
inline uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t which) {
  const uint64_t bytes = uint64_t(b) << 32 | a;
  uint32_t y = 0;
  for (int i = 0; i < 4; ++i) y |= uint32_t(bytes >> (which >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return y;
}

// Four signed bytes as numbers.
inline f32x4 signed_numbers(uint32_t word) {
  return {float(int8_t(word)), float(int8_t(word >> 8)), float(int8_t(word >> 16)), float(int8_t(word >> 24))};
}

// Results follow the order of NVIDIA's lookup8.
inline u32x2 lookup8(const u32x2& table, uint32_t nibbles) {
  u32x2 y = {};
  for (int i = 0; i < 8; ++i) {
    const uint32_t code = nibbles >> 4 * i & 15;
    if (code < 8) y[i / 4] |= (table[int(code / 4)] >> 8 * (code % 4) & 0xff) << 8 * (i % 4);
  }
  return y;
}
inline u32x2 lookup8_halves(const u32x2& found) {
  u32x2 y = {};
  for (int i = 0; i < 8; ++i) y[i % 2] |= (found[i / 4] >> 8 * (i % 4) & 0xff) << 8 * (i / 2);
  return y;
}
inline u32x2 lookup8_order(uint32_t low, uint32_t high) {
  u32x2 y = {};
  for (int i = 0; i < 8; ++i) y[i / 4] |= ((i % 2 ? high : low) >> 8 * (i / 2) & 0xff) << 8 * (i % 4);
  return y;
}
inline uint32_t masked_or(uint32_t v, uint32_t mask, uint32_t bits) { return (v & mask) | bits; }

// Looks up pairs of f16 in a table of eight, given as its low and its high bytes. Nibbles 0 to 3 of `indices` select
// values 0, 2, 4, 6, and nibbles 4 to 7 values 1, 3, 5, 7. All nibbles are below 8.
inline u32x4 lookup8_f16(const u32x2& low, const u32x2& high, uint32_t indices) {
  u32x4 pairs = {};
  for (int i = 0; i < 8; ++i) {
    const uint32_t index = indices >> (i / 2 * 4 + i % 2 * 16) & 15, shift = 8 * (index % 4);
    if (index >= 8) sim::machine().fail("lookup8_f16 takes indices below 8, got %08x", indices);
    const uint32_t bits = (low[int(index / 4)] >> shift & 0xff) | (high[int(index / 4)] >> shift & 0xff) << 8;
    pairs[i / 2] |= bits << 16 * (i % 2);
  }
  return pairs;
}

inline float max(float a, float b) { return std::fmax(a, b); }
inline float min(float a, float b) { return std::fmin(a, b); }
inline int max(int a, int b) { return a > b ? a : b; }
inline int min(int a, int b) { return a < b ? a : b; }
inline uint64_t min(uint64_t a, uint64_t b) { return a < b ? a : b; }
inline float abs(float x) { return std::fabs(x); }
inline float sqrt(float x) { return std::sqrt(x); }
inline float round_even(float x) { return std::nearbyint(x); }
inline float fma(float a, float b, float c) { return std::fma(a, b, c); }

inline float exp2_fast(float x) { return std::exp2(x); }
inline float exp_fast(float x) { return std::exp(x); }
inline float log_fast(float x) { return std::log(x); }
inline float rsqrt_fast(float x) { return 1.0f / std::sqrt(x); }
inline float rcp_fast(float x) { return 1.0f / x; }

}  // namespace lb::gpu
