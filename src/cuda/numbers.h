// Conversions, packed and integer arithmetic, approximate functions.
#pragma once

namespace lb::gpu {

LB_DEVICE float to_f32(float x) { return x; }
LB_DEVICE float to_f32(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
LB_DEVICE float to_f32(bf16 x) { return quant::bf16_to_f32(x.bits); }

LB_DEVICE f16 to_f16(float x) {
  f16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

LB_DEVICE bf16 to_bf16(float x) {
#if __CUDA_ARCH__ >= 800
  uint32_t pair;  // cvt of a single bf16 has 1/16 of the throughput
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(0.0f), "f"(x));
  return {uint16_t(pair)};
#else
  return {quant::f32_to_bf16(x)};
#endif
}

#if __CUDA_ARCH__ >= 890
LB_DEVICE float to_f32(fp8_e4m3 x) {
  uint32_t pair;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"(uint16_t(x.bits)));
  return to_f32(f16{uint16_t(pair)});
}
LB_DEVICE fp8_e4m3 to_fp8(float x) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
  return {uint8_t(pair)};
}
#else
LB_DEVICE float to_f32(fp8_e4m3 x) { return portable::fp8_to_f32(x.bits); }
LB_DEVICE fp8_e4m3 to_fp8(float x) { return {portable::f32_to_fp8(x)}; }
#endif

LB_DEVICE f16x2 to_f16x2(float lo, float hi) { return {to_f16(lo), to_f16(hi)}; }

LB_DEVICE f16x2 fma2(f16x2 a, f16x2 b, f16x2 c) {
  uint32_t y;
  asm("fma.rn.f16x2 %0, %1, %2, %3;"
      : "=r"(y)
      : "r"(__builtin_bit_cast(uint32_t, a)), "r"(__builtin_bit_cast(uint32_t, b)),
        "r"(__builtin_bit_cast(uint32_t, c)));
  return __builtin_bit_cast(f16x2, y);
}

LB_DEVICE int count_bits(uint64_t x) {
  int n;
  asm("popc.b64 %0, %1;" : "=r"(n) : "l"(x));
  return n;
}

LB_DEVICE int dot4(int a, int b, int c) { return __dp4a(a, b, c); }
// Like dot4, but the bytes of a are unsigned.
LB_DEVICE int dot4_unsigned(uint32_t a, int b, int c) {
  int y;
  asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
  return y;
}

// Selects four of the bytes of a (0 to 3) and b (4 to 7) by the low four nibbles of `which`. Bit 3 of a nibble
// replicates the byte's sign bit; __byte_perm would mask bit 3.
LB_DEVICE uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t which) {
  uint32_t y;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(which));
  return y;
}

// Four signed bytes as numbers: the bits of the float 2^23 + 128 + byte, minus 2^23 + 128.
LB_DEVICE f32x4 signed_numbers(uint32_t word) {
  const uint32_t bytes = word ^ 0x80808080u;
  f32x4 v;
  LB_UNROLL
  for (int j = 0; j < 4; ++j) v[j] = quant::float_of(__byte_perm(bytes, 0x4b000000u, 0x7540 + j)) - 8388736.0f;
  return v;
}

// (v & mask) | bits in one lop3; the compiler would emit two instructions for two immediate operands.
LB_DEVICE uint32_t masked_or(uint32_t v, uint32_t mask, uint32_t bits) {
  uint32_t y;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(v), "r"(mask), "r"(bits));
  return y;
}

// Results follow the order of the nibbles: low, then high nibble of each byte.
LB_DEVICE u32x2 lookup8(const u32x2& table, uint32_t nibbles) {
  return {permute_bytes(table[0], table[1], nibbles), permute_bytes(table[0], table[1], nibbles >> 16)};
}
LB_DEVICE u32x2 lookup8_halves(const u32x2& found) {
  return {permute_bytes(found[0], found[1], 0x6420), permute_bytes(found[0], found[1], 0x7531)};
}
LB_DEVICE u32x2 lookup8_order(uint32_t low, uint32_t high) {
  return {permute_bytes(low, high, 0x5140), permute_bytes(low, high, 0x7362)};
}
// Looks up pairs of f16 in a table of eight, given as its low and its high bytes. Nibbles 0 to 3 of `indices` select
// values 0, 2, 4, 6, and nibbles 4 to 7 values 1, 3, 5, 7. All nibbles are below 8.
LB_DEVICE u32x4 lookup8_f16(const u32x2& low, const u32x2& high, uint32_t indices) {
  const uint32_t ordered = permute_bytes(indices, 0, 0x3120);  // 0, 2, 1, 3; 4, 6, 5, 7
  const u32x2 lows = lookup8(low, ordered), highs = lookup8(high, ordered);
  return {permute_bytes(lows[0], highs[0], 0x6240), permute_bytes(lows[0], highs[0], 0x7351),
          permute_bytes(lows[1], highs[1], 0x6240), permute_bytes(lows[1], highs[1], 0x7351)};
}

LB_DEVICE float max(float a, float b) { return fmaxf(a, b); }
LB_DEVICE float min(float a, float b) { return fminf(a, b); }
LB_DEVICE int max(int a, int b) { return a > b ? a : b; }
LB_DEVICE int min(int a, int b) { return a < b ? a : b; }
LB_DEVICE uint64_t min(uint64_t a, uint64_t b) { return a < b ? a : b; }
LB_DEVICE float abs(float x) { return fabsf(x); }
LB_DEVICE float sqrt(float x) { return sqrtf(x); }
LB_DEVICE float round_even(float x) { return rintf(x); }
LB_DEVICE float fma(float a, float b, float c) { return fmaf(a, b, c); }

LB_DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
LB_DEVICE float exp_fast(float x) { return exp2_fast(x * 1.44269504f); }
LB_DEVICE float log_fast(float x) { return __logf(x); }
LB_DEVICE float rsqrt_fast(float x) { return rsqrtf(x); }
LB_DEVICE float rcp_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace lb::gpu
