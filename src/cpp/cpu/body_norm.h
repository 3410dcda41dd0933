// Vector bodies of the RMS norms. Bandwidth bound: each value is read twice (the second time from L1) and written once.
#pragma once

#include "cpu/kernels.h"
#include "cpu/simd.h"

namespace lb::cpu {
namespace {

inline float sum_of_squares(const float* x, int n) {
  vf sum[4] = {};
  int i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes)
    for (int j = 0; j < 4; ++j) {
      const vf value = load(x + i + j * kLanes);
      sum[j] = fma(value, value, sum[j]);
    }
  for (; i < n; i += kLanes) {
    const vf value = load(x + i, n - i);
    sum[0] = fma(value, value, sum[0]);
  }
  return hsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// factor / sqrt(sum of squares / divisor + eps). Squares of values above 1e19 overflow, so such values are scaled
// first; eps is negligible then. An infinite value gives NaN.
inline float inverse_root(const float* x, int n, float divisor, float eps, float factor = 1.0f) {
  constexpr float kScale = 0x1p-96f;
  const float sum = sum_of_squares(x, n);
  if (sum <= __FLT_MAX__) return factor / __builtin_sqrtf(sum / divisor + eps);
  float scaled = 0.0f;
  for (int i = 0; i < n; ++i) scaled += (x[i] * kScale) * (x[i] * kScale);
  return scaled <= __FLT_MAX__ ? factor * kScale / __builtin_sqrtf(scaled / divisor) : __builtin_nanf("");
}

inline float inverse_rms(const float* x, int dim, float eps) {
  return inverse_root(x, dim, static_cast<float>(dim), eps);
}

void rms_norm(const RmsNorm& op, int begin, int end) {
  for (int r = begin; r < end; ++r)
    for (int h = 0; h < op.heads; ++h) {
      const float* x = op.x + r * op.row_stride + h * op.head_stride;
      float* y = op.y + (long(r) * op.heads + h) * op.dim;
      const float scale = inverse_rms(x, op.dim, op.eps);
      for (int i = 0; i < op.dim; i += kLanes)
        store(y + i, load(x + i, op.dim - i) * scale * load(op.w + i, op.dim - i), op.dim - i);
    }
}

void gated_rms_norm(const GatedRmsNorm& op, int begin, int end) {
  for (int r = begin; r < end; ++r)
    for (int h = 0; h < op.heads; ++h) {
      const long at = (long(r) * op.heads + h) * op.dim;
      const float scale = inverse_rms(op.o + at, op.dim, op.eps);
      for (int i = 0; i < op.dim; i += kLanes) {
        const int n = op.dim - i;
        store(op.y + at + i, load(op.o + at + i, n) * scale * load(op.w + i, n) * silu(load(op.z + at + i, n)), n);
      }
    }
}

}  // namespace
}  // namespace lb::cpu
