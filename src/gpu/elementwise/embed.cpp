// Embed: one block per row, one thread per value.
// Bound: latency; the table row's bytes, and 4 bytes per value.
//
// dependents_may_launch() follows the wait. All later kernels of the step may therefore read, ahead of their own wait,
// everything older than this kernel: the table of angles, n_past, the page table, older rows of the cache.
#include "dialect.h"

#include "gpu/elementwise/embed_row.h"

namespace lb::gpu {

LB_KERNEL(embed_kernel, Embed, 256, 1) {
  wait_for_previous();
  dependents_may_launch();
  float* y = p.y + long(block_id()) * p.dim;
  embed_row(p, block_id(), thread_id(), n_threads(), [&](int i, float value) { y[i] = value; });
}

}  // namespace lb::gpu
