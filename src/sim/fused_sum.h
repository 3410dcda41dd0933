// The sums of matrix instructions with 8-bit and 4-bit floating-point operands, by the published rule (MMA-Sim, arXiv
// 2511.10909). Terms and c are truncated to kTermBits below the largest exponent and added exactly. The sum is
// truncated to kResultBits after its leading one. If c or a term is not a number, the result is 0x7fffffff.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "quant/half.h"

namespace lb::gpu::sim {

// exponent: the sum of the operands' exponents, which may be below the exponent of the value; kZero for a term of 0.
struct Term {
  double value;
  int exponent;
};
inline constexpr int kLeastExponent = -126, kZero = kLeastExponent;  // of normal fp32 numbers

// The exponent of a normal fp32 number, at least `least`.
inline int exponent_of(float x, int least) { return std::max(int(quant::bits_of(x) >> 23 & 0xff) - 127, least); }

template <int kTermBits, int kResultBits, int kCount>
float fused_sum(float c, const Term (&terms)[kCount]) {
  double plain = c;
  int exponent = exponent_of(c, kLeastExponent);
  for (const Term& term : terms) {
    plain += term.value;
    exponent = std::max(exponent, term.exponent);
  }
  if (std::isnan(plain)) return quant::float_of(0x7fffffff);
  if (std::isinf(plain)) return float(plain);
  const auto truncated = [&](double value) { return int64_t(std::ldexp(value, kTermBits - exponent)); };
  int64_t sum = truncated(c);
  for (const Term& term : terms) sum += truncated(term.value);
  if (sum == 0) return 0;
  const int leading = 63 - __builtin_clzll(uint64_t(std::abs(sum)));
  const int unit = exponent - kTermBits;  // exponent of the sum's last bit
  const int n_dropped = std::max(leading + unit, kLeastExponent) - kResultBits - unit;
  if (n_dropped > leading) return 0;
  if (n_dropped > 0) sum = sum / (int64_t(1) << n_dropped) * (int64_t(1) << n_dropped);
  return float(std::ldexp(double(sum), unit));
}

// The terms of products of e4m3 numbers, with the sum of the exponents of their scales.
template <int kCount>
void set_fp8_terms(Term (&terms)[kCount], const float* x, const float* y, int scale_exponent = 0) {
  constexpr int kLeast = -6;  // exponent of normal e4m3 numbers
  for (int k = 0; k < kCount; ++k) {
    const int exponent = exponent_of(x[k], kLeast) + exponent_of(y[k], kLeast) + scale_exponent;
    const double product = double(x[k]) * y[k];
    terms[k] = {std::ldexp(product, scale_exponent), product == 0 ? kZero : exponent};
  }
}

// wgmma of sm_90: 32 products together.
inline float fp8_sum(float c, const float (&x)[32], const float* y) {
  Term terms[32];
  set_fp8_terms(terms, x, y);
  return fused_sum<13, 13>(c, terms);
}

}  // namespace lb::gpu::sim
