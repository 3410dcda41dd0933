// Norms, rotary embedding, the gated activation, softmax and conversions: independent rows or values.
#include <cmath>

#include "base/dtype.h"
#include "base/error.h"
#include "cpu/kernels.h"
#include "cpu/scalar/scalar.h"
#include "cpu/tasks.h"

namespace lb {

using cpu::for_ranges;

void CpuStream::run(const RmsNorm& op) {
  for_ranges(pool(), op.rows, long(op.heads) * op.dim, [&](int begin, int end) { kernels().rms_norm(op, begin, end); });
}

void CpuStream::run(const GatedRmsNorm& op) {
  for_ranges(pool(), op.rows, 4L * op.heads * op.dim,  // the silu weighs as much as three more values
             [&](int begin, int end) { kernels().gated_rms_norm(op, begin, end); });
}

void CpuStream::run(const SwiGlu& op) {
  for_ranges(pool(), op.rows, 4L * op.dim, [&](int begin, int end) { kernels().swiglu(op, begin, end); });
}

void CpuStream::run(const Rope& op) {
  for_ranges(pool(), op.rows, long(op.heads) * op.n_pairs * 2,
             [&](int begin, int end) { kernels().rope(op, begin, end); });
}

void CpuStream::run(const RopeTable& op) {
  for_ranges(pool(), op.rows, op.n_pairs * 32L, [&](int begin, int end) {
    for (int r = begin; r < end; ++r)
      for (int i = 0; i < op.n_pairs; ++i) {
        const double angle = double(op.pos[long(op.axis[i]) * op.rows + r]) * op.inv_freq[i];
        op.cos[long(r) * op.n_pairs + i] = static_cast<float>(std::cos(angle));
        op.sin[long(r) * op.n_pairs + i] = static_cast<float>(std::sin(angle));
      }
  });
}

// The engine's hot paths use none of these three yet: one readable body serves every instruction set.
void CpuStream::run(const Softmax& op) {
  for_ranges(pool(), op.rows, 16L * op.dim, [&](int begin, int end) { cpu::scalar::softmax(op, begin, end); });
}

void CpuStream::run(const ArgMax& op) {
  LB_CHECK(op.dim >= 1, kInvalid, "[arg_max] dim must be at least 1, got ", op.dim);
  for_ranges(pool(), op.rows, op.dim, [&](int begin, int end) { cpu::scalar::arg_max(op, begin, end); });
}

void CpuStream::run(const Convert& op) {
  for (DType type : {op.from, op.to})
    LB_CHECK(type == DType::kF32 || type == DType::kF16 || type == DType::kBF16, kUnsupported, "[convert] from ",
             name(op.from), " to ", name(op.to), ": only F32, F16 and BF16 are converted");
  const int n_runs = static_cast<int>((op.count + cpu::kTaskValues - 1) / cpu::kTaskValues);
  pool().parallel_for(n_runs, [&](int task, int) {
    const long begin = task * cpu::kTaskValues;
    cpu::scalar::convert(op, begin, std::min(op.count, begin + cpu::kTaskValues));
  });
}

}  // namespace lb
