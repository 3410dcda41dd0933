// Ops on independent rows: norms, biases, rotary embedding, the gated activation, copies.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/kernels.h"
#include "cpu/tasks.h"

namespace lb {

using cpu::for_ranges;

void CpuStream::run(const RmsNorm& op) {
  for_ranges(pool(), op.rows, long(op.heads) * op.dim, [&](int begin, int end) { kernels().rms_norm(op, begin, end); });
}

void CpuStream::run(const GatedRmsNorm& op) {
  for_ranges(pool(), op.rows, 4L * op.heads * op.dim,  // a silu costs as much as three values
             [&](int begin, int end) { kernels().gated_rms_norm(op, begin, end); });
}

void CpuStream::run(const SwiGlu& op) {
  for_ranges(pool(), op.rows, 4L * op.dim, [&](int begin, int end) { kernels().swiglu(op, begin, end); });
}

void CpuStream::run(const GeGlu& op) {
  for_ranges(pool(), op.rows, 4L * op.dim, [&](int begin, int end) { kernels().geglu(op, begin, end); });
}

void CpuStream::run(const SoftCap& op) {
  constexpr long kPart = 4096;
  const long n = long(op.rows) * op.dim;
  for_ranges(pool(), int((n + kPart - 1) / kPart), 4 * kPart, [&](int begin, int end) {
    kernels().soft_cap(op.x + begin * kPart, std::min(end * kPart, n) - begin * kPart, op.cap);
  });
}

void CpuStream::run(const AddNorm& op) {
  const RmsNorm norm{op.z, op.w, op.z, op.rows, 1, op.dim, op.dim, op.dim, op.eps};
  for_ranges(pool(), op.rows, 2L * op.dim, [&](int begin, int end) {
    kernels().rms_norm(norm, begin, end);
    for (long i = long(begin) * op.dim; i < long(end) * op.dim; ++i) op.y[i] = (op.x[i] + op.z[i]) * op.scale;
  });
}

void CpuStream::run(const AddBias& op) {
  for_ranges(pool(), op.rows, op.dim, [&](int begin, int end) {
    for (int r = begin; r < end; ++r)
      for (int i = 0; i < op.dim; ++i) op.y[long(r) * op.dim + i] += op.bias[i];
  });
}

void CpuStream::run(const Rope& op) {
  for_ranges(pool(), op.rows, long(op.heads) * op.n_pairs * 2,
             [&](int begin, int end) { kernels().rope(op, begin, end); });
}

void CpuStream::run(const CopyRows& op) {
  for_ranges(pool(), op.rows, op.dim, [&](int begin, int end) {
    const long first = op.first == nullptr ? 0 : *op.first;
    for (int r = begin; r < end; ++r)
      std::memcpy(op.y + (first + r) % op.y_rows * op.y_stride, op.x + long(r) * op.dim,
                  size_t(op.dim) * sizeof(float));
  });
}

void CpuStream::run(const RopeTable& op) {
  for_ranges(pool(), op.rows, op.n_pairs * 32L, [&](int begin, int end) {
    for (int r = begin; r < end; ++r) {
      double scale = op.scale;
      if (op.row_scales != nullptr) scale *= op.row_scales[std::min(op.pos[r] / op.period, op.n_scales - 1)];
      for (int i = 0; i < op.n_pairs; ++i) {
        const double angle = double(op.pos[long(op.axis[i]) * op.rows + r]) * op.inv_freq[i];
        op.cos[long(r) * op.n_pairs + i] = static_cast<float>(scale * std::cos(angle));
        op.sin[long(r) * op.n_pairs + i] = static_cast<float>(scale * std::sin(angle));
      }
    }
  });
}

}  // namespace lb
