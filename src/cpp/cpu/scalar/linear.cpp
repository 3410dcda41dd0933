// Reference body of the linear products: one output at a time, no work shared between outputs.
#include <algorithm>
#include <cmath>

#include "cpu/scalar/scalar.h"
#include "quant/rows.h"

namespace lb::cpu::scalar {
namespace {

// Returns the sum over sub-blocks of s (scale * sum(q a) + offset * sum(a)), times the row's factor; the integer sums
// are exact.
template <class Block>
float dot_q8(const Block* w, int n_in, const int8_t* a, const float* s) {
  float total = 0;
  for (int i = 0; i < n_in; i += Block::kSub) {
    int8_t q[Block::kSub];
    const quant::ScaleOffset sub = unpack(w[i / Block::kValues], i % Block::kValues / Block::kSub, q);
    int32_t dot = 0, sum = 0;
    for (int l = 0; l < Block::kSub; ++l) {
      dot += q[l] * a[i + l];
      sum += a[i + l];
    }
    total += s[i / 32] * (sub.scale * float(dot) + sub.offset * float(sum));
  }
  return quant::row_factor(w) * total;
}

float added(const Linear& op, long at) { return op.add ? op.add[at] : 0.0f; }

}  // namespace

void embed_rows(const Embed& op, int begin, int end) {
  const long stride = quant::bytes_of(op.type, op.dim);
  for (int r = begin; r < end; ++r) {
    float* y = op.y + long(r) * op.dim;
    quant::dequantize_row(op.type, static_cast<const char*>(op.table) + op.ids[r] * stride, y, op.dim);
    if (op.scale == 1) continue;
    for (int i = 0; i < op.dim; ++i) y[i] *= op.scale;
  }
}

void quantize_q8(const float* x, int n_in, int stride, int8_t* q, float* scale, int32_t* sum) {
  for (int b = 0; b < stride / 32; ++b) {
    float largest = 0;
    bool is_finite = true;
    for (int i = 32 * b; i < std::min(32 * b + 32, n_in); ++i) {
      is_finite = is_finite && std::isfinite(x[i]);
      largest = std::max(largest, std::fabs(x[i]));
    }
    scale[b] = is_finite ? largest / 127.0f : NAN;
    sum[b] = 0;
    for (int i = 32 * b; i < 32 * b + 32; ++i) {
      const bool is_zero = i >= n_in || !(scale[b] > 0);
      // a subnormal scale is too coarse to bound the quotient
      q[i] = is_zero ? 0 : int8_t(std::clamp(std::nearbyint(x[i] / scale[b]), -127.0f, 127.0f));
      sum[b] += q[i];
    }
  }
}

void linear_q8(const Linear& op, const Q8Rows& x, int begin, int end, std::byte*) {
  quant::visit_block(op.type, [&](auto tag) {
    using Block = decltype(tag);
    for (int r = 0; r < op.rows; ++r) {
      for (int o = begin; o < end; ++o) {
        const Block* w = quant::row_blocks<Block>(op.w, o, op.n_in);
        const long at = long(r) * op.n_out + o;
        op.y[at] = dot_q8(w, op.n_in, x.q + long(r) * x.stride, x.scale + long(r) * x.n_blocks) + added(op, at);
      }
    }
  });
}

void linear_f32(const Linear& op, int begin, int end, std::byte* scratch) {
  float* w = reinterpret_cast<float*>(scratch);
  const long stride = quant::bytes_of(op.type, op.n_in);
  for (int o = begin; o < end; ++o) {
    quant::dequantize_row(op.type, static_cast<const char*>(op.w) + o * stride, w, op.n_in);
    for (int r = 0; r < op.rows; ++r) {
      double total = 0;
      for (int i = 0; i < op.n_in; ++i) total += double(w[i]) * op.x[long(r) * op.n_in + i];
      const long at = long(r) * op.n_out + o;
      op.y[at] = float(total) + added(op, at);
    }
  }
}

}  // namespace lb::cpu::scalar
