// The sampler in one cooperative launch, and the token counts that its repetition penalty starts from.
#include "dialect.h"

#include "gpu/batched.h"
#include "gpu/sampling/sample_token.h"

namespace lb::gpu {

LB_KERNEL(sample_kernel, SampleOnGrid, 512, 1) {
  LB_SHARED(uint64_t, scratch, kScratch);
  wait_for_previous();
  sample(p, 0, scratch);
}

LB_KERNEL(sample_kernel_batched, Batched<SampleOnGrid>, 512, 1) {
  LB_SHARED(uint64_t, scratch, kScratch);
  wait_for_previous();
  sample(p.of[block_id_z()], 0, scratch);
}

LB_KERNEL(count_window_kernel, CountWindow, 256, 1) {
  wait_for_previous();
  const int n = p.state->n_tokens, window = p.options->penalty_window;
  const int first = window < 0 || window > n ? 0 : n - window;
  for (int i = first + block_id() * n_threads() + thread_id(); i < n; i += n_blocks() * n_threads())
    atomic_add(&p.counts[p.history[i]].in_window, 1);
}

}  // namespace lb::gpu
