// RMS norms, one head at a time.
#include <cmath>

#include "cpu/scalar/scalar.h"

namespace lb::cpu::scalar {
namespace {

float inverse_rms(const float* x, int dim, float eps) {
  double sum = 0;
  for (int i = 0; i < dim; ++i) sum += double(x[i]) * x[i];
  return static_cast<float>(1.0 / std::sqrt(sum / dim + eps));
}

}  // namespace

void rms_norm(const RmsNorm& op, int begin, int end) {
  for (int r = begin; r < end; ++r)
    for (int h = 0; h < op.heads; ++h) {
      const float* x = op.x + r * op.row_stride + h * op.head_stride;
      float* y = op.y + (long(r) * op.heads + h) * op.dim;
      const float scale = inverse_rms(x, op.dim, op.eps);
      for (int i = 0; i < op.dim; ++i) y[i] = x[i] * scale * op.w[i];
    }
}

void gated_rms_norm(const GatedRmsNorm& op, int begin, int end) {
  for (int r = begin; r < end; ++r)
    for (int h = 0; h < op.heads; ++h) {
      const long at = (long(r) * op.heads + h) * op.dim;
      const float* o = op.o + at;
      const float* z = op.z + at;
      float* y = op.y + at;
      const float scale = inverse_rms(o, op.dim, op.eps);
      for (int i = 0; i < op.dim; ++i) y[i] = o[i] * scale * op.w[i] * silu(z[i]);
    }
}

}  // namespace lb::cpu::scalar
