// Softmax, the largest value and conversions, one row or value at a time.
#include <cmath>

#include "cpu/scalar/scalar.h"
#include "quant/half.h"

namespace lb::cpu::scalar {

void softmax(const Softmax& op, int begin, int end) {
  for (int r = begin; r < end; ++r) {
    const float* x = op.x + long(r) * op.dim;
    float* y = op.y + long(r) * op.dim;
    float maximum = -INFINITY;
    for (int i = 0; i < op.dim; ++i) maximum = std::fmax(maximum, op.scale * x[i]);
    double sum = 0;
    for (int i = 0; i < op.dim; ++i) sum += y[i] = std::exp(op.scale * x[i] - maximum);
    const float share = static_cast<float>(1 / sum);
    for (int i = 0; i < op.dim; ++i) y[i] *= share;
  }
}

void arg_max(const ArgMax& op, int begin, int end) {
  for (int r = begin; r < end; ++r) {
    const float* x = op.x + long(r) * op.dim;
    int best = -1;
    for (int i = 0; i < op.dim; ++i)
      if (!std::isnan(x[i]) && (best < 0 || x[i] > x[best])) best = i;
    op.y[r] = best < 0 ? 0 : best;
  }
}

void convert(const Convert& op, long begin, long end) {
  for (long i = begin; i < end; ++i) {
    const auto half = [&] { return static_cast<const uint16_t*>(op.x)[i]; };
    const float value = op.from == DType::kF32   ? static_cast<const float*>(op.x)[i]
                        : op.from == DType::kF16 ? quant::f16_to_f32(half())
                                                 : quant::bf16_to_f32(half());
    if (op.to == DType::kF32)
      static_cast<float*>(op.y)[i] = value;
    else
      static_cast<uint16_t*>(op.y)[i] = op.to == DType::kF16 ? quant::f32_to_f16(value) : quant::f32_to_bf16(value);
  }
}

}  // namespace lb::cpu::scalar
