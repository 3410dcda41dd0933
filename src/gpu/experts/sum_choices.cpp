// SumChoices: the weighted sum of a row's choices, in order of rank, then the shared expert and add. The additions and
// their order are expert_down's. Grid: x, outputs; y, rows. Bound: bandwidth, 4 k bytes per value.
#include "dialect.h"

#include "gpu/activation.h"
#include "gpu/experts/shape.h"

namespace lb::gpu {

LB_KERNEL(sum_choices_kernel, SumChoices, kSumThreads, 1) {
  dependents_may_launch();
  wait_for_previous();
  const int out = block_id() * n_threads() + thread_id();
  if (out >= p.dim) return;
  for (int row = block_id_y(); row < p.n_rows; row += n_blocks_y()) {
    float sum = 0;
    for (int j = 0; j < p.k; ++j) {
      const int choice = row * p.k + j;
      float part = p.sums[long(choice) * p.dim + out];
      if (p.bias != nullptr) part += p.bias[long(p.experts[choice]) * p.dim + out];
      sum = j == 0 ? p.weights[choice] * part : fma(p.weights[choice], part, sum);
    }
    const long at = long(row) * p.dim + out;
    if (p.shared != nullptr)
      sum = fma(p.shared_gate == nullptr ? 1.0f : sigmoid(p.shared_gate[row]), p.shared[at], sum);
    p.y[at] = p.add == nullptr ? sum : sum + p.add[at];
  }
}

}  // namespace lb::gpu
