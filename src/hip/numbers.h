// Conversions, packed and integer arithmetic, approximate functions.
#pragma once

namespace lb::gpu {

LB_DEVICE float to_f32(float x) { return x; }
LB_DEVICE float to_f32(f16 x) { return float(__builtin_bit_cast(_Float16, x.bits)); }
LB_DEVICE float to_f32(bf16 x) { return quant::bf16_to_f32(x.bits); }
LB_DEVICE f16 to_f16(float x) { return {__builtin_bit_cast(uint16_t, _Float16(x))}; }
LB_DEVICE bf16 to_bf16(float x) { return {quant::f32_to_bf16(x)}; }

#ifdef __GFX12__
LB_DEVICE float to_f32(fp8_e4m3 x) { return __builtin_amdgcn_cvt_f32_fp8(x.bits, 0); }
// The instruction does not saturate, so the value is clamped first.
LB_DEVICE fp8_e4m3 to_fp8(float x) {
  const float clamped = x > 448.0f ? 448.0f : x < -448.0f ? -448.0f : x;
  return {uint8_t(__builtin_amdgcn_cvt_pk_fp8_f32(clamped, clamped, 0, false))};
}
#else
LB_DEVICE float to_f32(fp8_e4m3 x) { return portable::fp8_to_f32(x.bits); }
LB_DEVICE fp8_e4m3 to_fp8(float x) { return {portable::f32_to_fp8(x)}; }
#endif

LB_DEVICE f16x2 to_f16x2(float lo, float hi) { return {to_f16(lo), to_f16(hi)}; }

LB_DEVICE f16x2 fma2(f16x2 a, f16x2 b, f16x2 c) {
  typedef _Float16 Pair __attribute__((ext_vector_type(2)));
  return __builtin_bit_cast(f16x2, __builtin_elementwise_fma(__builtin_bit_cast(Pair, a), __builtin_bit_cast(Pair, b),
                                                             __builtin_bit_cast(Pair, c)));
}

LB_DEVICE int count_bits(uint64_t x) { return __builtin_popcountll(x); }

LB_DEVICE int dot4(int a, int b, int c) { return __builtin_amdgcn_sudot4(true, a, true, b, c, false); }
// Like dot4, but the bytes of a are unsigned.
LB_DEVICE int dot4_unsigned(uint32_t a, int b, int c) {
  return __builtin_amdgcn_sudot4(false, int(a), true, b, c, false);
}

// Four signed bytes as numbers.
LB_DEVICE f32x4 signed_numbers(uint32_t word) {
  return {float(int8_t(word)), float(int8_t(word >> 8)), float(int8_t(word >> 16)), float(int8_t(word >> 24))};
}

LB_DEVICE uint32_t masked_or(uint32_t v, uint32_t mask, uint32_t bits) { return (v & mask) | bits; }

// v_perm selects by byte: 0 to 7 pick a byte (0 is the lowest of the second operand), 8 to 11 replicate a sign bit,
// which is 0 here, and 12 to 15 give constants. Bit 2 of a nibble above 11 is therefore cleared.
LB_DEVICE u32x2 lookup8(const u32x2& table, uint32_t nibbles) {
  const uint32_t which = nibbles & ~(nibbles >> 1 & 0x44444444u);
  return {__builtin_amdgcn_perm(table[1], table[0], which & 0x0f0f0f0fu),
          __builtin_amdgcn_perm(table[1], table[0], which >> 4 & 0x0f0f0f0fu)};
}
LB_DEVICE u32x2 lookup8_halves(const u32x2& found) { return found; }
LB_DEVICE u32x2 lookup8_order(uint32_t low, uint32_t high) { return {low, high}; }
// Looks up pairs of f16 in a table of eight, given as its low and its high bytes. Nibbles 0 to 3 of `indices` select
// values 0, 2, 4, 6, and nibbles 4 to 7 values 1, 3, 5, 7. All nibbles are below 8.
LB_DEVICE u32x4 lookup8_f16(const u32x2& low, const u32x2& high, uint32_t indices) {
  const uint32_t even = indices & 0x0f0f0f0fu, odd = indices >> 4 & 0x0f0f0f0fu;  // 0, 4, 1, 5; 2, 6, 3, 7
  const u32x2 lows = {__builtin_amdgcn_perm(low[1], low[0], even), __builtin_amdgcn_perm(low[1], low[0], odd)};
  const u32x2 highs = {__builtin_amdgcn_perm(high[1], high[0], even), __builtin_amdgcn_perm(high[1], high[0], odd)};
  return {__builtin_amdgcn_perm(highs[0], lows[0], 0x06020400), __builtin_amdgcn_perm(highs[1], lows[1], 0x06020400),
          __builtin_amdgcn_perm(highs[0], lows[0], 0x07030501), __builtin_amdgcn_perm(highs[1], lows[1], 0x07030501)};
}

LB_DEVICE float max(float a, float b) { return __builtin_fmaxf(a, b); }
LB_DEVICE float min(float a, float b) { return __builtin_fminf(a, b); }
LB_DEVICE int max(int a, int b) { return a > b ? a : b; }
LB_DEVICE int min(int a, int b) { return a < b ? a : b; }
LB_DEVICE uint64_t min(uint64_t a, uint64_t b) { return a < b ? a : b; }
LB_DEVICE float abs(float x) { return __builtin_fabsf(x); }
LB_DEVICE float sqrt(float x) { return __builtin_sqrtf(x); }
LB_DEVICE float round_even(float x) { return __builtin_rintf(x); }
LB_DEVICE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

LB_DEVICE float exp2_fast(float x) { return __builtin_amdgcn_exp2f(x); }
LB_DEVICE float exp_fast(float x) { return exp2_fast(x * 1.44269504f); }
LB_DEVICE float log_fast(float x) { return __builtin_amdgcn_logf(x) * 0.693147181f; }
LB_DEVICE float rsqrt_fast(float x) { return __builtin_amdgcn_rsqf(x); }
LB_DEVICE float rcp_fast(float x) { return __builtin_amdgcn_rcpf(x); }

}  // namespace lb::gpu
