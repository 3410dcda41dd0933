// A row of activations in shared memory, as the mat-vec reads it. Both forms are made of 16-byte pieces, and piece n
// lies at n ^ (n / 8 % 8): lanes that read pieces at a power-of-two stride then hit different banks.
#pragma once

#include "quant/half.h"

namespace lb::gpu {

LB_DEVICE int piece_slot(int n) { return n ^ (n >> 3 & 7); }

LB_DEVICE float at_or_zero(const float* x, int i, int n) { return i < n ? x[i] : 0.0f; }

// fp32: 4 values a piece.
struct StagedF32 {
  static constexpr bool kIsInt8 = false;
  f32x4* pieces;

  LB_DEVICE StagedF32(unsigned char* shared, int) : pieces(reinterpret_cast<f32x4*>(shared)) {}

  LB_DEVICE f32x4 piece(int n) const { return pieces[piece_slot(n)]; }

  // n values of x; what follows up to the next multiple of 256 becomes zero. The whole block takes part.
  LB_DEVICE void stage(const float* x, int n) const {
    const bool is_wide = reinterpret_cast<uintptr_t>(x) % 16 == 0;
    for (int i = thread_id(); i < (n + 255) / 256 * 64; i += n_threads()) {
      f32x4 v;
      if (is_wide && 4 * i + 4 <= n)
        v = load<f32x4>(x + 4 * i);
      else
        v = {at_or_zero(x, 4 * i, n), at_or_zero(x, 4 * i + 1, n), at_or_zero(x, 4 * i + 2, n),
             at_or_zero(x, 4 * i + 3, n)};
      pieces[piece_slot(i)] = v;
    }
  }
};

// Of 32 codes. sums: of the first 16 and, in the upper half, of the last 16.
struct CodeRun {
  float scale;
  uint32_t sums;
};

// 8-bit codes, 16 a piece: the rounding of Activations::kInt8, bit for bit.
struct StagedInt8 {
  static constexpr bool kIsInt8 = true;
  unsigned char* codes;
  CodeRun* runs;

  LB_DEVICE StagedInt8(unsigned char* shared, int max_values)
      : codes(shared), runs(reinterpret_cast<CodeRun*>(shared + max_values)) {}

  LB_DEVICE u32x4 piece(int n) const { return reinterpret_cast<const u32x4*>(codes)[piece_slot(n)]; }
  LB_DEVICE float scale(int piece) const { return runs[piece / 2].scale; }
  LB_DEVICE int sum(int piece) const { return int16_t(runs[piece / 2].sums >> 16 * (piece % 2)); }

  // n values of x, a multiple of 32, 16-byte aligned; zeros up to the next multiple of 256. The whole block takes part.
  // Eight lanes round a run of 32.
  LB_DEVICE void stage(const float* x, int n) const {
    for (int i = thread_id(); i < (n + 255) / 256 * 64; i += n_threads()) {
      f32x4 v = {};
      if (4 * i < n) v = load<f32x4>(x + 4 * i);
      // As integers |x| keeps its order, and a NaN is the largest.
      int largest = 0;
      LB_UNROLL
      for (int j = 0; j < 4; ++j) largest = max(largest, int(quant::bits_of(v[j]) & 0x7fffffff));
      LB_UNROLL
      for (int mask = 1; mask < 8; mask *= 2) largest = max(largest, shuffle_xor(largest, mask));
      const float scale = quant::float_of(largest < 0x7f800000 ? uint32_t(largest) : 0x7fc00000u) / 127.0f;
      uint32_t packed = 0;
      if (scale > 0) {
        const Divisor divisor(scale);
        LB_UNROLL
        for (int j = 0; j < 4; ++j) packed |= code_of(divisor.quotient(v[j])) << 8 * j;
      }
      int sum = dot4(int(packed), 0x01010101, 0);  // then over the four lanes of a piece
      sum += shuffle_xor(sum, 1);
      sum += shuffle_xor(sum, 2);
      const int other = shuffle_xor(sum, 4);
      reinterpret_cast<uint32_t*>(codes)[piece_slot(i / 4) * 4 + i % 4] = packed;
      if (i % 8 == 0) runs[i / 8] = {scale, (uint32_t(sum) & 0xffff) | uint32_t(other) << 16};
    }
  }

 private:
  // x / d, rounded as the division is, for |x| <= 127 d. One reciprocal for many quotients: with the reciprocal rounded
  // right, one correction of the product is enough (Markstein); tiny d, where a residual could be subnormal, divide.
  struct Divisor {
    float d, reciprocal;
    LB_DEVICE explicit Divisor(float value) : d(value), reciprocal(1.0f / value) {}
    LB_DEVICE float quotient(float x) const {
      if (d < 0x1p-80f) return x / d;
      const float q = x * reciprocal;
      return fma(fma(-q, d, x), reciprocal, q);
    }
  };

  // Nearest even, as the low byte; a subnormal scale is too coarse to bound the quotient.
  LB_DEVICE static uint32_t code_of(float q) { return quant::bits_of(min(max(q, -127.0f), 127.0f) + 0x1.8p23f) & 0xff; }
};

}  // namespace lb::gpu
