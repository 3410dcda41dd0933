// Conversions, packed and integer arithmetic, fast functions.
#pragma once

namespace lb::gpu {

LB_DEVICE float to_f32(float x) { return x; }
LB_DEVICE float to_f32(f16 x) { return float(__builtin_bit_cast(_Float16, x.bits)); }
LB_DEVICE float to_f32(bf16 x) { return quant::bf16_to_f32(x.bits); }
LB_DEVICE f16 to_f16(float x) { return {__builtin_bit_cast(uint16_t, _Float16(x))}; }
LB_DEVICE bf16 to_bf16(float x) { return {quant::f32_to_bf16(x)}; }

#ifdef __GFX12__
LB_DEVICE float to_f32(fp8_e4m3 x) { return __builtin_amdgcn_cvt_f32_fp8(x.bits, 0); }
// The instruction does not saturate.
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

LB_DEVICE int dot4(int a, int b, int c) { return __builtin_amdgcn_sudot4(true, a, true, b, c, false); }

// The instruction takes four bytes of 0..7 (0 is the lowest byte of its second operand); the fourth bit of each chooses
// among the bytes of two such results.
LB_DEVICE u32x2 lookup16(const u32x4& table, uint32_t nibbles) {
  const auto four = [&](uint32_t bytes) {
    const uint32_t index = bytes & 0x07070707u, half = (bytes >> 1 & 0x04040404u) | 0x03020100u;
    const uint32_t lower = __builtin_amdgcn_perm(table[1], table[0], index);
    const uint32_t upper = __builtin_amdgcn_perm(table[3], table[2], index);
    return __builtin_amdgcn_perm(upper, lower, half);
  };
  return {four(nibbles), four(nibbles >> 4)};
}

LB_DEVICE float max(float a, float b) { return __builtin_fmaxf(a, b); }
LB_DEVICE float min(float a, float b) { return __builtin_fminf(a, b); }
LB_DEVICE int max(int a, int b) { return a > b ? a : b; }
LB_DEVICE int min(int a, int b) { return a < b ? a : b; }
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
