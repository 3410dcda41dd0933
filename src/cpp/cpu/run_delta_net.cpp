// Gated DeltaNet. Tasks of the convolution are ranges of channels; tasks of the recurrence are (value head, columns).
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "cpu/kernels.h"
#include "cpu/tasks.h"
#include "cpu/tree.h"

namespace lb {
namespace {

constexpr int kColumns = 64;  // minimum columns of a slice of S; 128 keys x 64 columns x 4 bytes = 32 KiB fit L1

bool is_first_of_key_head(const GatedDelta& op, int v_head) {
  return op.order == HeadOrder::kGrouped ? v_head % (op.n_v_heads / op.n_k_heads) == 0 : v_head < op.n_k_heads;
}

}  // namespace

size_t delta_thread_scratch(int dk, int dv) {
  return sizeof(float) * (long(dk) * kColumns + long(kMaxTree) * dv);  // a slice of the state, the accepted deltas
}

void CpuStream::run(const CausalConv& op) {
  LB_ASSERT(op.rows <= kMaxTree && cpu::n_accepted(op.accepted) <= kMaxTree && op.n_taps >= 2 && op.n_taps <= 8);
  const long values = long(op.channels) * (op.rows + 1) * op.n_taps;
  const int task_channels = 256;
  cpu::for_tasks(pool(), (op.channels + task_channels - 1) / task_channels, values / 2, [&](int task, int) {
    kernels().causal_conv(op, task * task_channels, std::min(op.channels, (task + 1) * task_channels));
  });
}

void CpuStream::run(const DeltaPrepare& op) {
  cpu::for_ranges(pool(), op.rows, 2L * op.n_k_heads * op.dk + 16L * op.n_v_heads,
                  [&](int begin, int end) { kernels().delta_prepare(op, begin, end); });
}

void CpuStream::run(const GatedDelta& op) {
  LB_ASSERT(op.rows <= kMaxTree && cpu::n_accepted(op.accepted) <= kMaxTree && op.dk % 8 == 0 && op.dv % 8 == 0);
  float* k_out = op.k_pending[1 - cpu::filled_buffer(op)];
  float* cs_out = op.cs_pending[1 - cpu::filled_buffer(op)];
  // Columns are independent, so the number of slices changes no bit of the result.
  const int wanted = (2 * pool().size() + op.n_v_heads - 1) / op.n_v_heads;
  const int n_slices = std::clamp(wanted, 1, (op.dv + kColumns - 1) / kColumns);
  const int slice = ((op.dv + n_slices - 1) / n_slices + 15) / 16 * 16;
  const long values = long(op.n_v_heads) * op.dk * op.dv * (op.rows + 1) / 2;
  cpu::for_tasks(pool(), op.n_v_heads * n_slices, values, [&](int task, int thread) {
    const int v_head = task / n_slices, begin = task % n_slices * slice;
    if (begin < op.dv)
      kernels().gated_delta(op, v_head, begin, std::min(op.dv, begin + slice),
                            thread_scratch(thread, delta_thread_scratch(op.dk, op.dv)));
    if (begin != 0 || !is_first_of_key_head(op, v_head)) return;
    const int k_head = cpu::key_head(op, v_head);
    for (int r = 0; r < op.rows; ++r)
      std::memcpy(k_out + (long(r) * op.n_k_heads + k_head) * op.dk, op.k + r * op.row_stride + long(k_head) * op.dk,
                  sizeof(float) * op.dk);
  });
  std::copy_n(op.g, size_t(op.rows) * op.n_v_heads, cs_out);  // copies nothing if the op only folds
}

}  // namespace lb
