// The sum of a wgmma of fp8 operands on sm_90, by the published rule (MMA-Sim, arXiv 2511.10909): each product has the
// sum of its operands' exponents. Products and c are truncated to 13 bits below the largest exponent and added exactly;
// the sum is truncated to 13 bits after its leading one.
#pragma once

#include <algorithm>
#include <cmath>

#include "quant/half.h"

namespace lb::gpu::sim {

inline constexpr int kFp8SumBits = 13;

// The exponent of a normal fp32 number, at least `least`.
inline int exponent_of(float x, int least) { return std::max(int(quant::bits_of(x) >> 23 & 0xff) - 127, least); }

inline float fp8_sum(float c, const float (&x)[32], const float* y) {
  constexpr int kLeast = -6, kLeastOfSums = -126;  // of normal e4m3 and fp32 numbers
  float products[32];
  float plain = c;
  int exponent = exponent_of(c, kLeastOfSums);
  for (int k = 0; k < 32; ++k) {
    products[k] = x[k] * y[k];  // exact
    plain += products[k];
    if (products[k] != 0) exponent = std::max(exponent, exponent_of(x[k], kLeast) + exponent_of(y[k], kLeast));
  }
  if (!std::isfinite(plain)) return quant::float_of(0x7fffffff);
  const double unit = std::ldexp(1.0, kFp8SumBits - exponent);
  long sum = long(c * unit);  // conversions truncate
  for (const float product : products) sum += long(product * unit);
  long unused = 1;  // power of two below which bits of the sum are dropped
  while (std::abs(sum) / unused >= 2l << kFp8SumBits) unused *= 2;
  return float(double(sum / unused * unused) / unit);
}

}  // namespace lb::gpu::sim
